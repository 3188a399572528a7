/* SPDX-License-Identifier: Apache-2.0 */
/* Ulysses sequence parallelism over the cache: outside attention a rank holds a shard of the tokens with all heads,
 * inside it holds all tokens with a slice of the heads. */
#ifndef CKV_ULYSSES_H
#define CKV_ULYSSES_H

#include <ckv/attention.h>
#include <ckv/cache.h>
#include <ckv/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ckv_ulysses ckv_ulysses;

/* How tokens are split over ranks; rank r's rows follow those of rank r-1.
 * PADDED: ceil(seq_len / ranks) rows on every rank; the sharder adds rows after the last token.
 * UNPADDED: every row is a token; the first seq_len % ranks ranks hold one more than the others, which may hold none.
 */
typedef enum ckv_sharding { CKV_SHARDS_PADDED = 0, CKV_SHARDS_UNPADDED = 1 } ckv_sharding;

typedef struct ckv_ulysses_config {
    size_t struct_size;
    int64_t q_heads;  /* over all ranks; a multiple of the ranks and of kv_heads */
    int64_t kv_heads; /* over all ranks; a multiple of the ranks, or fewer: then the ranks are a multiple of them, and
                         ranks / kv_heads neighbours hold the same one */
    int64_t head_dim;
    ckv_dtype dtype;          /* of tensors */
    const ckv_device *device; /* NULL: host */
    ckv_sharding sharding;
    const char *exchange;  /* how heads travel: "fused" (one kernel through memory that all ranks address), "sendrecv"
                              (messages), NULL or "auto" (fused where every rank can). Read by create only */
    int64_t overlap_parts; /* 0 or 1: exchange, attention, exchange. n: a rank's heads travel in n parts, and the
                              exchange of one overlaps attention over another. Divides the K/V heads of a rank */
} ckv_ulysses_config;

CKV_API ckv_ulysses_config ckv_ulysses_config_default(void);

/* K/V heads each rank holds: what its cache is built with. ERROR_INVALID, ERROR_UNSUPPORTED with the numbers. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_kv_heads_per_rank(const ckv_ulysses_config *config, int ranks,
                                                               int64_t *kv_heads_out);

/* Token rows a sharder gives each rank for seq_len real tokens with padding: ceil(seq_len / ranks); 0 unless both are
 * positive. */
CKV_API int64_t ckv_ulysses_rows_per_rank(int64_t seq_len, int ranks);

/* Token rows of one rank under either way to split; 0 unless seq_len and ranks are positive and rank is one of them. */
CKV_API int64_t ckv_ulysses_rows_of_rank(ckv_sharding sharding, int64_t seq_len, int ranks, int rank);

/* A context over `comm` (borrowed; must outlive it). Collective: ranks agree on the config. All state belongs to the
 * context, so several live side by side. ERROR_INVALID, ERROR_UNSUPPORTED (head counts, with the numbers; a device or
 * an exchange that the communicator does not serve), ERROR_MEMORY, ERROR_COMM, ERROR_TIMEOUT; the same on every rank.
 */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_create(ckv_comm *comm, const ckv_ulysses_config *config,
                                                    ckv_ulysses **ulysses_out);

/* Its calls must have finished on the device; on the other ranks they may go on. Accepts NULL and a pointer to NULL. */
CKV_API void ckv_ulysses_destroy(ckv_ulysses **ulysses);

/* "fused", "sendrecv", or "none" with one rank; the same on every rank. why_not_fused_out, if given, gets the reason,
 * or "". Both live as long as the context. */
CKV_API const char *ckv_ulysses_exchange(const ckv_ulysses *ulysses, const char **why_not_fused_out);

/* Attention of one forward, sharded. `args` as for ckv_attention, except that q, kv and out are this rank's shard
 * [rows, heads of all ranks, head_dim] with rows as the sharding says and q_heads the count over all ranks. seq_len is
 * global; padded, ranks*rows - ranks < seq_len <= ranks*rows. The cache holds the K/V heads of this rank. Rows past
 * seq_len are neither cached nor attended, whatever they hold, and come back zero. lse, if given, is [rows, q_heads] of
 * this rank's shard. ckv_attention_args_set_packed counts the cache's heads, which are one rank's: set the strides of a
 * fused shard by hand.
 * A rank that holds no rows may leave its tensors NULL, but not lse when the others want it.
 * Collective. Calls on one context must be ordered on the device (one stream, or events), and come in the same order on
 * every rank. Enqueues on `stream`; safe to capture once a forward of that size has run, if every rank captures and
 * replays alike. When one rank must refuse, all return that rank's error before anything is exchanged, and no cache or
 * output has changed: ERROR_INVALID, ERROR_STATE, ERROR_UNSUPPORTED. Ranks whose seq_len, geometry or history differ
 * are refused with ERROR_INVALID. ERROR_COMM, ERROR_TIMEOUT. What fails after the call has returned,
 * ckv_comm_async_error tells. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_attention(ckv_ulysses *ulysses, const ckv_attention_args *args,
                                                       ckv_stream stream);

/* Context that every rank holds alike, such as text: K and V [tokens, kv_heads over all ranks, head_dim] enter the
 * cache once. Each rank writes its heads of them at resident positions from `start`, as ckv_cache_write_range does;
 * nothing is sent. Errors as there, and ERROR_INVALID for a cache that is not this rank's. */
CKV_NODISCARD CKV_API ckv_status ckv_ulysses_write_replicated(const ckv_ulysses *ulysses, ckv_cache *cache,
                                                              int64_t layer, int64_t start, int64_t tokens,
                                                              const ckv_kv *source, ckv_stream stream);

#ifdef __cplusplus
}
#endif
#endif
