/* SPDX-License-Identifier: Apache-2.0 */
/* Between the trace's reader and its model. Memory handed out here lives as long as the trace. */
#ifndef CKV_TOOLS_TRACE_INTERNAL_H
#define CKV_TOOLS_TRACE_INTERNAL_H

#include "tools/trace/trace.h"

/* Zeroed and aligned for any type, or NULL. */
void *trace_allocate(trace *t, size_t bytes);
const void *trace_copy(trace *t, const void *source, size_t bytes);

/* A new last op, or NULL. Moves the ops. */
trace_op *trace_append(trace *t, trace_op_kind kind);

#endif
