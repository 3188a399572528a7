/* SPDX-License-Identifier: Apache-2.0 */
/* A small trace as the text of a test case, tensors and all. */
#ifndef CKV_TOOLS_REPRO_CASE_TEXT_H
#define CKV_TOOLS_REPRO_CASE_TEXT_H

#include "tools/repro/trial.h"

#include <stdio.h>

/* A program of one case on tests/support/recorded_calls.h, for CKV_TEST_MAIN. `source` is what it was shrunk from. */
void case_text_print(FILE *to, const trace *t, int ranks, const failure *f, const char *source);

#endif
