/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a sharded rollout, and beside it the same rollout on one rank with all heads and in the exact-window
 * reference. A forward runs on all three and is compared: with one rank bit for bit on the host and within rounding on
 * a GPU, where a kernel depends on the head count; with the reference within rounding.
 *
 * Tensors live on the device of the run; a case sees and fills host copies. */
#ifndef CKV_TESTS_SUPPORT_ULYSSES_PARTY_H
#define CKV_TESTS_SUPPORT_ULYSSES_PARTY_H

#include "tests/support/ranks.h"

#include <ckv/reference.h>
#include <ckv/ulysses.h>

/* What all cases of a program run on; a driver sets it before any rank starts. */
typedef struct party_setup {
    const ckv_device *device; /* NULL: host */
    const char *backend;      /* of attention; NULL: auto */
    const char *exchange;     /* NULL: auto */
} party_setup;

extern party_setup party_uses;

/* The device of the run, and whether it is a GPU: cases try fewer shapes there, as each is compiled. */
const ckv_device *party_device(void);
int party_on_gpu(void);

typedef struct party_shape {
    int64_t q_heads, kv_heads, head_dim; /* over all ranks */
    ckv_dtype dtype;
    int fp8_pages; /* values are rounded so that pages keep them exactly; attention by what "auto" finds for them */
    int64_t tokens_per_page, pin_tokens, window_tokens, max_staged_tokens;
    int64_t sizes[4]; /* causal block sizes, 0 ends */
    ckv_sharding sharding;
    const char *exchange; /* NULL: that of the run */
    int64_t overlap_parts;
    const ckv_device *device; /* NULL: that of the run */
    int without_reference;    /* compared with one rank only: the reference takes too long for many tokens */
} party_shape;

enum { PARTY_LAYERS = 2 };

typedef struct party {
    ckv_comm *comm; /* borrowed */
    int rank, ranks;
    party_shape shape; /* as the device takes it */
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
 * this rank's out, one head wider than it need be, and lse. A rank without rows has NULL tensors. */
typedef struct party_tensors {
    int64_t rows, first_row, padded;
    void *qkv;              /* goes to the device with party_upload */
    void *out, *out_before; /* what is there after party_download; what was there at first */
    float *lse;             /* after party_download */
    int64_t qkv_bytes, out_bytes, lse_bytes;
    void *device_qkv, *device_out, *device_lse;
    ckv_attention_args args; /* of this rank's shard, on the device */
} party_tensors;

/* A shape as the device of the run takes it: cuDNN's elements, head sizes and pages on a GPU. */
party_shape party_fit(const party_shape *shape);

/* A cache of `kv_heads` heads with the fitted shape's rollout open. */
ckv_status party_open_cache(const party_shape *shape, int64_t kv_heads, ckv_cache **cache_out);

/* The context alone; `shape` is fitted. Collective. */
ckv_ulysses_config party_config(const party_shape *shape);

/* Collective. The shape is fitted first. */
void party_open(party *p, rank_report *report, ckv_comm *comm, const party_shape *shape);
void party_close(party *p);

/* The next forward's tensors, the same on every rank, uploaded. Free with party_free. */
void party_make(party *p, rank_report *report, const party_forward *forward, party_tensors *tensors_out);
void party_renew(party *p, rank_report *report, const party_forward *forward, const party_tensors *tensors);
void party_upload(const party *p, rank_report *report, const party_tensors *tensors);
void party_download(const party *p, rank_report *report, const party_tensors *tensors);
void party_free(const party *p, party_tensors *tensors);

/* The sharded forward alone, downloaded. Collective. */
void party_attend(party *p, rank_report *report, const party_tensors *tensors);

/* Download what a sharded forward left behind, and compare all of it. */
void party_compare(party *p, rank_report *report, const party_forward *forward, const party_tensors *tensors);

/* Run and compare everything a forward must leave behind. Collective. */
void party_run(party *p, rank_report *report, const party_forward *forward);
void party_commit(party *p, rank_report *report, int64_t tokens);

/* Context that every rank holds: `tokens` of random K and V in every layer, once, from the start; committed. */
void party_prompt(party *p, rank_report *report, int64_t tokens);

/* Forward of both layers, then a commit. */
void party_step(party *p, rank_report *report, const party_forward *forward, int64_t commit_tokens);

/* A sharded call must be refused with `expected` and `detail` on every rank, changing neither cache nor out. `args` is
 * what this rank hands in. */
void party_refused(party *p, rank_report *report, const party_tensors *tensors, const ckv_attention_args *args,
                   ckv_status expected, const char *detail);

#endif
