/* SPDX-License-Identifier: Apache-2.0 */
/* What only a GPU can show: captured cycles of forwards and a commit. */
#include "lib/cache/cache.h"
#include "tests/single_gpu/cuda_case.h"
#include "tests/single_gpu/rollout_case.h"

#include <string.h>

enum { LAYERS = 2, CHUNK = 12, BLOCK = 3 };

/* A chunk of a rollout as one graph: a denoising forward in one block, the clean one in blocks, the commit. */
typedef struct cycle {
    ckv_cache *cache;
    cudaStream_t stream;
    cudaGraphExec_t graph;
    void *inputs[LAYERS]; /* K/V the graph reads, the same addresses at every replay */
} cycle;

static void capture_cycle(cycle *c)
{
    ckv_kv kv[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++)
        kv[layer] = model_stamp_forward(&model, layer, CHUNK, &c->inputs[layer]);
    ckv_cache_state before = ckv_cache_get_state(c->cache);
    cudaGraph_t graph;
    assert_cuda(cudaStreamCreate(&c->stream));
    assert_cuda(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal));
    for (int layer = 0; layer < LAYERS; layer++)
        assert_ok(ckv_cache_write_staged(c->cache, layer, CHUNK, CHUNK, &kv[layer], 1, c->stream));
    for (int layer = 0; layer < LAYERS; layer++)
        assert_ok(ckv_cache_write_staged(c->cache, layer, CHUNK, BLOCK, &kv[layer], 1, c->stream));
    assert_ok(ckv_cache_commit(c->cache, CHUNK, c->stream));
    assert_cuda(cudaStreamEndCapture(c->stream, &graph));
    assert_cuda(cudaGraphInstantiate(&c->graph, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    ckv_cache_state after = ckv_cache_get_state(c->cache);
    assert_true(same_state(&before, &after));
    assert_ok(ckv_cache_check(c->cache, NULL)); /* nothing has run */
}

/* New K/V at the old addresses, one replay, and the mirror follows. */
static void replay_cycle(cycle *c)
{
    for (int layer = 0; layer < LAYERS; layer++)
        model_stamp_forward(&model, layer, CHUNK, &c->inputs[layer]);
    assert_cuda(cudaGraphLaunch(c->graph, c->stream));
    assert_cuda(cudaStreamSynchronize(c->stream));
    assert_ok(model_follow_commit(&model, c->cache, CHUNK));
    assert_ok(ckv_cache_check(c->cache, NULL));
}

static void free_cycle(cycle *c)
{
    for (int layer = 0; layer < LAYERS; layer++)
        test_device()->free(c->inputs[layer]);
    assert_cuda(cudaGraphExecDestroy(c->graph));
    assert_cuda(cudaStreamDestroy(c->stream));
}

/* Captured before the window fills; replayed until every page has been dropped and handed out again. */
static void cycle_replays_over_commits(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(5, 20, CHUNK, SIZES(CHUNK, BLOCK), 2);
    cycle c = {.cache = open_exact(LAYERS, 2, 8, &config)};
    prompt(c.cache, 5);
    capture_cycle(&c);
    for (int chunk = 0; chunk < 24; chunk++) {
        replay_cycle(&c);
        forward_and_expect(c.cache, CHUNK, BLOCK);
        forward_and_expect(c.cache, CHUNK, CHUNK);
        if (chunk % 6 == 5) /* and eagerly in between */
            assert_ok(model_commit(&model, c.cache, CHUNK));
    }
    assert_true(model.evicted > 0);
    free_cycle(&c);
    ckv_cache_destroy(&c.cache);
}

/* The same geometry opened again with a longer pin, which ends inside a replayed chunk. */
static void graph_outlives_the_rollout(void **state)
{
    (void)state;
    ckv_rollout_config first = rollout(5, 20, CHUNK, SIZES(CHUNK, BLOCK), 2),
                       second = rollout(17, 20, CHUNK, SIZES(CHUNK, BLOCK), 2);
    ckv_pool_config pool = pool_config(LAYERS, 2, 8, 400);
    cycle c = {0};
    assert_ok(ckv_cache_create(&pool, &c.cache));
    model_create(&model, &pool);
    assert_ok(ckv_cache_open(c.cache, &first, NULL));
    model_open(&model, &first);
    capture_cycle(&c);
    for (int chunk = 0; chunk < 8; chunk++)
        replay_cycle(&c);
    ckv_cache_close(c.cache);
    assert_ok(ckv_cache_open(c.cache, &second, NULL));
    model_open(&model, &second);
    for (int chunk = 0; chunk < 12; chunk++) {
        replay_cycle(&c);
        forward_and_expect(c.cache, CHUNK, BLOCK);
    }
    assert_int_equal(ckv_cache_get_state(c.cache).fixed_tokens, 17);
    free_cycle(&c);
    ckv_cache_destroy(&c.cache);
}

static void capture_refuses_and_changes_nothing(void **state)
{
    (void)state;
    ckv_rollout_config config = rollout(30, 20, CHUNK, SIZES(CHUNK), 1);
    ckv_cache *cache = open_exact(1, 1, 8, &config);
    cudaStream_t stream;
    cudaGraph_t graph;
    assert_cuda(cudaStreamCreate(&stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_status(ckv_cache_commit(cache, 0, stream), CKV_ERROR_INVALID);
    assert_status(ckv_cache_commit(cache, CHUNK + 1, stream), CKV_ERROR_INVALID); /* eagerly legal: all pinned */
    assert_non_null(strstr(ckv_last_error(), "captured"));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 1;
    assert_cuda(cudaGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 0);
    assert_ok(ckv_cache_commit(cache, CHUNK + 1, stream));
    assert_ok(ckv_cache_check(cache, stream));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    ckv_cache_destroy(&cache);
}

static const ckv_test_case cases[] = {
    CKV_CASE(cycle_replays_over_commits),
    CKV_CASE(graph_outlives_the_rollout),
    CKV_CASE(capture_refuses_and_changes_nothing),
};

CKV_TEST_MAIN("graph", cases)
