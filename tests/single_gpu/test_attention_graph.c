/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on a GPU around captures, memory and wrong addresses. */
#include "tests/single_gpu/attention_case.h"
#include "tests/single_gpu/cuda_case.h"

/* Two layers of a forward of 6 rows, one of them padding, captured or not. */
typedef struct chunk {
    forward forwards[2];
    ckv_attention_args there[2];
} chunk;

static chunk new_chunk(pair *p, ckv_random *random, int64_t block)
{
    chunk c;
    for (int layer = 0; layer < 2; layer++) {
        c.forwards[layer] = new_forward(p, random, layer, 6, block, 7);
        c.there[layer] = upload_args(p, &c.forwards[layer].args);
    }
    return c;
}

static void free_chunk(pair *p, chunk *c)
{
    for (int layer = 0; layer < 2; layer++)
        free_forward(p, &c->forwards[layer]);
}

static void attend_chunk(const chunk *c, cudaStream_t stream)
{
    for (int layer = 0; layer < 2; layer++)
        assert_ok(ckv_attention(&c->there[layer], stream));
}

static cudaGraphExec_t end_capture(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&executable, graph, 0));
    assert_cuda(cudaGraphDestroy(graph));
    return executable;
}

static cudaGraphExec_t capture_chunk(const chunk *c, cudaStream_t stream)
{
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    attend_chunk(c, stream);
    return end_capture(stream);
}

/* New tokens at the old addresses. */
static void renew_chunk(pair *p, ckv_random *random, chunk *c)
{
    for (int layer = 0; layer < 2; layer++) {
        forward *f = &c->forwards[layer];
        fill_random(random, tensor_dtype(p), f->qkv, f->rows * f->args.q_token_stride);
        fill_value(tensor_dtype(p), f->out, f->count_out, SENTINEL);
        upload_args(p, &f->args);
    }
}

static void replay(cudaGraphExec_t graph, cudaStream_t stream)
{
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaGraphLaunch(graph, stream));
    assert_cuda(cudaStreamSynchronize(stream));
}

static void compare_chunk(pair *p, chunk *c)
{
    for (int layer = 0; layer < 2; layer++) {
        mirror_download(p, c->forwards[layer].out);
        mirror_download(p, c->forwards[layer].lse);
        compare_pair(p, &c->forwards[layer].args);
    }
}

static void replay_chunk(pair *p, ckv_random *random, chunk *c, cudaGraphExec_t graph, cudaStream_t stream)
{
    renew_chunk(p, random, c);
    replay(graph, stream);
    compare_chunk(p, c);
}

/* Backends may have a kernel of their own for wide heads and large pages. */
static pair pair_of_width(int wide)
{
    pair p = default_pair();
    if (wide) {
        p.pool.head_dim = 64;
        p.pool.tokens_per_page = 32;
        p.rollout.window_tokens = 80;
    }
    return p;
}

/* Captured before the window fills; replayed until it has slid over every page, and after close and open. */
static void replay_over_commits(int wide)
{
    ckv_random random = {ckv_test_seed()};
    cudaStream_t stream;
    pair p = pair_of_width(wide);
    assert_cuda(cudaStreamCreate(&stream));
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk whole = new_chunk(&p, &random, 6), blocks = new_chunk(&p, &random, 2);
    for (int layer = 0; layer < 2; layer++) { /* builds the plans */
        assert_ok(ckv_attention(&whole.there[layer], stream));
        assert_ok(ckv_attention(&blocks.there[layer], stream));
    }
    assert_cuda(cudaStreamSynchronize(stream));
    cudaGraphExec_t denoise = capture_chunk(&whole, stream), clean = capture_chunk(&blocks, stream);
    for (int rollout = 0; rollout < 2; rollout++) {
        for (int i = 0; i < (wide ? 24 : 8); i++) {
            replay_chunk(&p, &random, &whole, denoise, stream);
            replay_chunk(&p, &random, &whole, denoise, stream);
            replay_chunk(&p, &random, &blocks, clean, stream);
            commit_pair(&p, 6);
        }
        ckv_cache_close(p.cache);
        assert_ok(ckv_cache_open(p.cache, &p.rollout, NULL));
        assert_ok(ckv_reference_open(p.reference, p.rollout.pin_tokens, p.rollout.window_tokens));
    }
    assert_cuda(cudaGraphExecDestroy(clean));
    assert_cuda(cudaGraphExecDestroy(denoise));
    free_chunk(&p, &blocks);
    free_chunk(&p, &whole);
    close_pair(&p);
    assert_cuda(cudaStreamDestroy(stream));
}

static void captured_forwards_replay_over_commits(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        replay_over_commits(wide);
}

/* Denoising forward, clean forward and commit in one graph, captured before the window fills; the mirror follows. */
static void replay_whole_chunks(int wide)
{
    ckv_random random = {ckv_test_seed()};
    cudaStream_t stream;
    pair p = pair_of_width(wide);
    assert_cuda(cudaStreamCreate(&stream));
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk whole = new_chunk(&p, &random, 6), blocks = new_chunk(&p, &random, 2);
    attend_chunk(&whole, stream); /* builds the plans */
    attend_chunk(&blocks, stream);
    assert_cuda(cudaStreamSynchronize(stream));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    attend_chunk(&whole, stream);
    attend_chunk(&blocks, stream);
    assert_ok(ckv_cache_commit(p.cache, 6, stream));
    cudaGraphExec_t cycle = end_capture(stream);
    for (int i = 0; i < 16; i++) {
        renew_chunk(&p, &random, &whole);
        renew_chunk(&p, &random, &blocks);
        replay(cycle, stream);
        compare_chunk(&p, &whole);
        compare_chunk(&p, &blocks);
        assert_ok(ckv_cache_follow_commit(p.cache, 6));
        assert_ok(ckv_reference_commit(p.reference, 6));
        assert_ok(ckv_cache_check(p.cache, NULL));
    }
    assert_cuda(cudaGraphExecDestroy(cycle));
    free_chunk(&p, &blocks);
    free_chunk(&p, &whole);
    close_pair(&p);
    assert_cuda(cudaStreamDestroy(stream));
}

static void one_graph_is_a_whole_chunk(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        replay_whole_chunks(wide);
}

/* A plan allocates and compiles, which would break the capture: refused, and the capture goes on. */
static void first_forward_in_a_capture_is_refused(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    cudaStream_t stream;
    cudaGraph_t graph;
    pair p = default_pair();
    assert_cuda(cudaStreamCreate(&stream));
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk c = new_chunk(&p, &random, 2);
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    assert_status(ckv_attention(&c.there[0], stream), CKV_ERROR_STATE);
    assert_non_null(strstr(ckv_last_error(), "captured"));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 1;
    assert_cuda(cudaGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 0); /* nothing was staged either */
    assert_cuda(cudaGraphDestroy(graph));
    attend_pair(&p, &c.forwards[0].args);
    assert_cuda(cudaGraphExecDestroy(capture_chunk(&c, stream))); /* layers share a plan */
    free_chunk(&p, &c);
    close_pair(&p);
    assert_cuda(cudaStreamDestroy(stream));
}

static void wrong_addresses_are_refused(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk c = new_chunk(&p, &random, 2);
    const forward *f = &c.forwards[0];
    struct {
        ckv_attention_args args;
        const char *says;
    } wrong[7];
    for (size_t i = 0; i < 7; i++)
        wrong[i].args = c.there[0];
    wrong[0].args.q = f->qkv, wrong[0].says = "q at";
    wrong[1].args.kv.k = f->qkv, wrong[1].says = "kv.k at";
    wrong[2].args.kv.v = f->qkv, wrong[2].says = "kv.v at";
    wrong[3].args.out = f->out, wrong[3].says = "out at";
    wrong[4].args.lse = f->lse, wrong[4].says = "lse at";
    wrong[5].args.q = (const char *)wrong[5].args.q + 2, wrong[5].says = "16 bytes";
    wrong[6].args.out = (char *)wrong[6].args.out + 2, wrong[6].says = "16 bytes";
    for (size_t i = 0; i < 7; i++) {
        assert_status(ckv_attention(&wrong[i].args, NULL), CKV_ERROR_INVALID);
        if (strstr(ckv_last_error(), wrong[i].says) == NULL)
            fail_msg("refusal %zu does not say '%s': %s", i, wrong[i].says, ckv_last_error());
    }
    assert_cuda(cudaDeviceSynchronize());
    attend_pair(&p, &f->args);
    free_chunk(&p, &c);
    close_pair(&p);
}

/* Strides in elements that vectors do not fit are refused with the stride. */
static void unusable_strides_are_refused(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair p = default_pair();
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk c = new_chunk(&p, &random, 2);
    const int64_t bad[] = {-64, 68, 0};
    for (size_t i = 0; i < 3; i++) {
        ckv_attention_args args = c.there[0];
        args.q_token_stride = bad[i];
        assert_status(ckv_attention(&args, NULL), CKV_ERROR_UNSUPPORTED);
        assert_non_null(strstr(ckv_last_error(), "q_token_stride"));
    }
    free_chunk(&p, &c);
    close_pair(&p);
}

static void check_memory(int wide)
{
    ckv_random random = {ckv_test_seed()};
    pair p = pair_of_width(wide);
    open_pair(&p);
    write_prompt(&p, &random, 5);
    chunk c = new_chunk(&p, &random, 2);
    assert_ok(ckv_attention(&c.there[0], NULL));
    assert_cuda(cudaDeviceSynchronize());
    size_t before, after, total;
    assert_cuda(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 50; i++)
        assert_ok(ckv_attention(&c.there[i % 2], NULL));
    assert_cuda(cudaDeviceSynchronize());
    assert_cuda(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
    free_chunk(&p, &c);
    close_pair(&p);
}

static void forwards_take_no_memory(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        check_memory(wide);
}

/* Caches may share a library's handle, not their plans. */
static void a_cache_outlives_another(void **state)
{
    (void)state;
    ckv_random random = {ckv_test_seed()};
    pair first = default_pair(), second = default_pair();
    open_pair(&first);
    open_pair(&second);
    write_prompt(&first, &random, 5);
    write_prompt(&second, &random, 9);
    step_pair(&first, &random, 6, 2, 6);
    step_pair(&second, &random, 6, 2, 6);
    step_pair(&first, &random, 6, 2, 6);
    close_pair(&first);
    step_pair(&second, &random, 6, 2, 6);
    close_pair(&second);
}

static const ckv_test_case cases[] = {
    CKV_CASE(captured_forwards_replay_over_commits),
    CKV_CASE(one_graph_is_a_whole_chunk),
    CKV_CASE(first_forward_in_a_capture_is_refused),
    CKV_CASE(wrong_addresses_are_refused),
    CKV_CASE(unusable_strides_are_refused),
    CKV_CASE(forwards_take_no_memory),
    CKV_CASE(a_cache_outlives_another),
};
CKV_TEST_MAIN("attention_graph", cases)
