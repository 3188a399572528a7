/* SPDX-License-Identifier: Apache-2.0 */
/* Traces in which a mistake of ckv shows: rollouts with prompts, padded chunks, several causal blocks, edits and a
 * second opening of the cache. No outputs are recorded. */
#ifndef CKV_TESTS_MUTANTS_TRACES_H
#define CKV_TESTS_MUTANTS_TRACES_H

#include "tools/trace/trace.h"

/* For up to 4 ranks. NULL when out of memory. */
trace *mutant_trace_make(int64_t tokens_per_page);

#endif
