/* SPDX-License-Identifier: Apache-2.0 */
/* A rollout in sixty lines: a prompt, then chunks of 2 frames; each chunk is denoised, cleaned frame by frame and
 * committed. Build against an installed ckv: cc rollout.c $(pkg-config --cflags --libs ckv) */
#include <ckv/ckv.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 2, DIM = 64, FRAME = 11, CHUNK = 2 * FRAME, PROMPT = 16, WINDOW = 5 * FRAME, CHUNKS = 8 };

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != CKV_OK) {                                                                                        \
            fprintf(stderr, "%s: %s\n", #call, ckv_last_error());                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static float q[CHUNK * HEADS * DIM], k[CHUNK * HEADS * DIM], v[CHUNK * HEADS * DIM], out[CHUNK * HEADS * DIM];

/* Stand-in for your model: every step would project the hidden states to q, k and v. */
static void make_qkv(unsigned seed)
{
    srand(seed);
    for (int i = 0; i < CHUNK * HEADS * DIM; i++) {
        q[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        k[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        v[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    }
}

static void forward(ckv_cache *cache, int64_t layer, int64_t causal_block_size)
{
    ckv_attention_args args = ckv_attention_args_default();
    args.cache = cache;
    args.layer = layer;
    args.q_heads = HEADS;
    args.rows = args.seq_len = CHUNK; /* with padding rows: rows > seq_len, the number of real tokens */
    args.causal_block_size = causal_block_size;
    args.q = q;
    args.kv = ckv_kv_dense(k, v, HEADS, DIM);
    args.out = out;
    args.q_token_stride = args.out_token_stride = HEADS * DIM;
    args.q_head_stride = args.out_head_stride = DIM;
    CHECK(ckv_attention(&args, NULL));
}

int main(void)
{
    const int64_t block_sizes[] = {CHUNK, FRAME};
    ckv_rollout_config rollout = ckv_rollout_config_default();
    rollout.pin_tokens = PROMPT;
    rollout.window_tokens = WINDOW;
    rollout.max_staged_tokens = CHUNK;
    rollout.causal_block_sizes = block_sizes;
    rollout.num_causal_block_sizes = 2;
    ckv_rollout_size size;
    CHECK(ckv_rollout_config_size(&rollout, 32, &size));

    ckv_pool_config pool = ckv_pool_config_default();
    pool.layers = LAYERS;
    pool.kv_heads = HEADS;
    pool.head_dim = DIM;
    pool.dtype = CKV_FP32;
    pool.tokens_per_page = 32;
    pool.pool_tokens = size.pool_tokens;
    ckv_cache *cache;
    CHECK(ckv_cache_create(&pool, &cache));
    CHECK(ckv_cache_open(cache, &rollout, NULL));

    make_qkv(0);
    ckv_kv prompt = ckv_kv_dense(k, v, HEADS, DIM);
    for (int64_t layer = 0; layer < LAYERS; layer++)
        CHECK(ckv_cache_write_range(cache, layer, 0, PROMPT, &prompt, NULL));
    CHECK(ckv_cache_commit(cache, PROMPT, NULL));
    for (unsigned chunk = 1; chunk <= CHUNKS; chunk++) {
        for (unsigned step = 0; step < 4; step++) {
            make_qkv(100 * chunk + step);
            for (int64_t layer = 0; layer < LAYERS; layer++)
                forward(cache, layer, step < 3 ? CHUNK : FRAME); /* the last, clean step is causal by frame */
        }
        CHECK(ckv_cache_commit(cache, CHUNK, NULL));
        ckv_cache_state state = ckv_cache_get_state(cache);
        printf("chunk %u: %lld tokens fixed, %lld in history\n", chunk, (long long)state.fixed_tokens,
               (long long)state.history_tokens);
    }
    ckv_cache_destroy(&cache);
    return 0;
}
