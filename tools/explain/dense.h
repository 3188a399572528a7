/* SPDX-License-Identifier: Apache-2.0 */
/* The exact-window reference over a list of keys: what a row computes that reads exactly these. */
#ifndef CKV_TOOLS_EXPLAIN_DENSE_H
#define CKV_TOOLS_EXPLAIN_DENSE_H

#include "tools/explain/history.h"

#include <ckv/reference.h>

/* Output of every head of the forward's row `row`, [q_heads, head_dim]. `q` NULL: the forward's. */
ckv_status dense_attend(const history *h, const history_keys *keys, int64_t row, const void *q, double *out,
                        problem *why);

/* The one key that, read too or left out, explains `observed` of one head best; NULL when none does. `others` are keys
 * that might have been read. */
ckv_status dense_explain(const history *h, const history_keys *keys, const history_keys *others, int64_t row,
                         int64_t head, const double *observed, history_key **key_out, bool *is_missing_out,
                         problem *why);

#endif
