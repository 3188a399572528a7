/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a sharded rollout, and beside it the same rollout on one rank with all heads and in the exact-window
 * reference. A forward runs on all three and is compared: bit for bit with one rank, within rounding with the
 * reference. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_PARTY_H
#define CKV_TESTS_SUPPORT_ULYSSES_PARTY_H

#include "tests/support/ranks.h"

#include <ckv/reference.h>
#include <ckv/ulysses.h>

typedef struct party_shape {
    int64_t q_heads, kv_heads, head_dim; /* over all ranks */
    ckv_dtype dtype;
    int64_t tokens_per_page, pin_tokens, window_tokens, max_staged_tokens;
    int64_t sizes[4]; /* causal block sizes, 0 ends */
} party_shape;

enum { PARTY_LAYERS = 2 };

typedef struct party {
    ckv_comm *comm; /* borrowed */
    int rank, ranks;
    party_shape shape;
    int64_t rank_kv_heads;
    ckv_ulysses *ulysses;
    ckv_cache *cache; /* this rank's K/V heads */
    ckv_cache *whole; /* all of them */
    ckv_reference *reference;
    uint64_t forwards; /* so that no two have the same tensors */
} party;

typedef enum party_padding { PADDING_ZERO, PADDING_RANDOM, PADDING_NAN, PADDING_INFINITY, NUM_PADDINGS } party_padding;

typedef struct party_forward {
    int64_t layer, seq_len, causal_block_size;
    party_padding padding;
    int without_lse;
} party_forward;

/* Tensors of one forward: the global fused [padded, q_heads + 2*kv_heads, head_dim], of which a rank uses its rows; and
 * this rank's out, one head wider than it need be, and lse. */
typedef struct party_tensors {
    int64_t rows, padded;
    void *qkv;
    void *out, *out_before;
    int64_t out_bytes;
    float *lse;
    ckv_attention_args args; /* of this rank's shard */
} party_tensors;

/* A cache of `kv_heads` heads with the shape's rollout open. `device` NULL: host. */
ckv_status party_open_cache(const party_shape *shape, int64_t kv_heads, const ckv_device *device,
                            ckv_cache **cache_out);

/* Collective. */
void party_open(party *p, rank_report *report, ckv_comm *comm, const party_shape *shape, const ckv_device *device);
void party_close(party *p);

/* The next forward's tensors, the same on every rank. Free with party_free. */
void party_make(party *p, const party_forward *forward, party_tensors *tensors_out);
void party_free(party_tensors *tensors);

/* Run and compare everything a forward must leave behind. */
void party_run(party *p, rank_report *report, const party_forward *forward);
void party_commit(party *p, rank_report *report, int64_t tokens);

/* A sharded call must be refused with `expected` and `detail` on every rank, changing neither cache nor out. `args` is
 * what this rank hands in. */
void party_refused(party *p, rank_report *report, const party_tensors *tensors, const ckv_attention_args *args,
                   ckv_status expected, const char *detail);

/* party_* and other steps report; leave when one did. */
#define RANK_STEP(report, step)                                                                                        \
    do {                                                                                                               \
        step;                                                                                                          \
        if ((report)->failed)                                                                                          \
            return;                                                                                                    \
    } while (0)

#endif
