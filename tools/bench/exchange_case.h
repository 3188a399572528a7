/* SPDX-License-Identifier: Apache-2.0 */
/* One layer's q, k, v and output of one size, ready to be exchanged, and whether what arrived is what was sent. */
#ifndef CKV_TOOLS_BENCH_EXCHANGE_CASE_H
#define CKV_TOOLS_BENCH_EXCHANGE_CASE_H

#include "tools/bench/options.h"
#include "ulysses/exchange.h"

typedef struct exchange_case {
    const bench_options *options;
    ckv_comm *comm;
    const ckv_device *device;
    int rank, ranks;
    ckv_ulysses_heads heads;
    int64_t vector_bytes; /* one head of one token */
    int64_t rows;         /* of a shard, padding included */
    char *qkv, *out;      /* [rows, heads of q, k and v], [rows, query heads] */
    ckv_cache *cache;     /* of one layer and this rank's heads; all rows fit */

    /* One path at a time. */
    ckv_exchange *exchange;
    ckv_exchange_plan plan;
    bool into_pages; /* K and V go on into the cache */
} exchange_case;

/* Close it whatever open returned. */
ckv_status exchange_case_open(exchange_case *c, const bench_options *options, int64_t tokens, ckv_stream stream);
void exchange_case_close(exchange_case *c);

/* ERROR_UNSUPPORTED when this transport does not have the path. */
ckv_status exchange_case_take_path(exchange_case *c, const char *path, ckv_stream stream);
void exchange_case_leave_path(exchange_case *c);

/* bench_work, of an exchange_case. */
ckv_status exchange_case_there(void *argument, ckv_stream stream);
ckv_status exchange_case_back(void *argument, ckv_stream stream);

/* Both ways and into the pages, then some tokens of every tensor. ERROR_INTERNAL, the same on every rank, with what is
 * wrong. */
ckv_status exchange_case_check(exchange_case *c, ckv_stream stream);

#endif
