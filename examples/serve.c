/* SPDX-License-Identifier: Apache-2.0 */
/* Serving in a page of C: prompts that begin alike share K/V blocks; a long prompt pushes them to the host, from where
 * they come back. Build against an installed ckv: cc serve.c $(pkg-config --cflags --libs ckv) */
#include <ckv/ckv.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP = 16, LAYERS = 2, HEADS = 2, DIM = 4, LONGEST = 256, BLOCKS = 10 };

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != CKV_OK) {                                                                                        \
            fprintf(stderr, "%s: %s\n", #call, ckv_last_error());                                                      \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Stand-in for your model, which would write K and V of these tokens in each layer, or read them: here a row holds its
 * token. A block is [layers][K, V][heads][STEP][DIM]; a table says in which slot a position's block is.
 */
static int rows_hold_tokens(ckv_blocks *blocks, int64_t id, int64_t from, int64_t to, int write)
{
    ckv_blocks_pool_view pool;
    int64_t slots[LONGEST / STEP];
    int32_t tokens[LONGEST];
    CHECK(ckv_blocks_get_pool(blocks, LONGEST, 0, CKV_BLOCKS_PRIMARY, &pool));
    CHECK(ckv_blocks_get_table(blocks, id, LONGEST, 0, LONGEST / STEP, NULL, slots, NULL));
    CHECK(ckv_blocks_get_tokens(blocks, id, LONGEST, tokens));
    CHECK(ckv_blocks_step_begin(blocks, NULL)); /* the stream of the step waits for the library's copies */
    int ok = 1;
    for (int64_t n = from; n < to; n++) {
        float *block = (float *)(void *)((char *)pool.base + slots[n / STEP] * pool.slot_stride_bytes);
        for (int64_t run = 0; run < LAYERS * 2 * HEADS; run++) {
            float *row = block + (run * STEP + n % STEP) * DIM;
            for (int64_t i = 0; i < DIM; i++) {
                if (write)
                    row[i] = (float)tokens[n];
                ok = ok && row[i] == (float)tokens[n];
            }
        }
    }
    CHECK(ckv_blocks_step_end(blocks, NULL)); /* and later copies wait for the step */
    return ok;
}

static void serve(ckv_blocks *blocks, int64_t id, const int32_t *tokens, int64_t count)
{
    ckv_blocks_request request = ckv_blocks_request_default();
    ckv_blocks_admission admission;
    ckv_blocks_stats stats;
    request.id = id;
    request.tokens = tokens;
    request.num_tokens = count;
    CHECK(ckv_blocks_add(blocks, &request, 1, &admission)); /* ERROR_CAPACITY: no room; nothing has changed */
    int64_t reused = admission.prepopulated_tokens;
    int ok = rows_hold_tokens(blocks, id, 0, reused, 0);
    rows_hold_tokens(blocks, id, reused, count, 1);
    CHECK(ckv_blocks_prefill(blocks, id, count)); /* or in several steps */
    CHECK(ckv_blocks_store_context(blocks, id, NULL));
    for (int32_t n = 0; n < 8; n++) { /* generate: write the row of the last token, then append the next */
        rows_hold_tokens(blocks, id, count + n - 1, count + n, 1);
        CHECK(ckv_blocks_append(blocks, id, &n, 1));
    }
    CHECK(ckv_blocks_remove(blocks, id, 1, NULL)); /* what is written stays reusable */
    CHECK(ckv_blocks_get_stats(blocks, &stats));
    printf("request %lld: %lld of %lld tokens reused, %s; so far %lld blocks to the host, %lld back\n", (long long)id,
           (long long)reused, (long long)count, ok ? "all there" : "WRONG", (long long)stats.total.offload_blocks,
           (long long)stats.total.onboard_blocks);
    if (!ok)
        exit(1);
}

int main(void)
{
    int32_t first[100], second[100], other[140];
    for (int32_t i = 0; i < 140; i++) {
        other[i] = 1000 + i;
        if (i < 100) {
            first[i] = i;
            second[i] = i < 50 ? i : 500 + i; /* the same system prompt */
        }
    }
    ckv_blocks_count count = {.blocks = {BLOCKS, BLOCKS}}; /* on the device, on the host */
    ckv_blocks_config config = ckv_blocks_config_default();
    config.geometry.tokens_per_block = STEP;
    config.geometry.max_seq_len = LONGEST;
    config.geometry.layers = LAYERS;
    config.geometry.kv_heads_all = HEADS;
    config.geometry.size_per_head = DIM;
    config.geometry.dtype = CKV_BLOCKS_F32;
    config.counts = &count;
    config.num_counts = 1;
    CHECK(ckv_device_find("host", &config.device)); /* "cuda": pass the stream of your steps instead of NULL */
    ckv_blocks *blocks;
    CHECK(ckv_blocks_create(&config, &blocks));
    serve(blocks, 1, first, 100);
    serve(blocks, 2, second, 100);
    serve(blocks, 3, other, 140);
    serve(blocks, 4, first, 100);
    CHECK(ckv_blocks_wait(blocks));
    ckv_blocks_destroy(&blocks);
    return 0;
}
