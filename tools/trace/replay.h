/* SPDX-License-Identifier: Apache-2.0 */
/* A trace on a session: what `ckv replay` does between reading and printing. */
#ifndef CKV_TOOLS_REPLAY_H
#define CKV_TOOLS_REPLAY_H

#include "tools/trace/session.h"
#include "tools/trace/trace.h"

/* The pool that the largest rollout of the trace needs, shared by `ranks`. Refused when that is more than this
 * machine's memory: a trace from somebody else must not be able to ask for it. The cause is about op *op_out. */
ckv_status replay_pool_tokens(const trace *t, int ranks, int64_t *pool_tokens_out, size_t *op_out, problem *why);

/* Run one op. Only a forward writes the result. Collective, as everything of a session. */
ckv_status replay_op(session *s, const trace_op *op, session_result *result_out, problem *why);

#endif
