/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/multi_gpu/ulysses_graph.h"

#include "tests/support/ulysses_party.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define RANK_CUDA(report, call) RANK_CHECK(report, (call) == cudaSuccess)

static party_shape shape_for(int ranks)
{
    party_shape shape = {
        .q_heads = 4 * ranks,
        .kv_heads = 2 * ranks,
        .head_dim = 64,
        .dtype = CKV_BF16,
        .tokens_per_page = 16,
        .pin_tokens = 3,
        .window_tokens = 50,
        .max_staged_tokens = 44,
        .sizes = {11, 44, 43},
    };
    return shape;
}

static void capture(party *p, rank_report *report, const party_tensors *t, cudaStream_t stream,
                    cudaGraphExec_t *graph_out)
{
    cudaGraph_t graph;
    RANK_CUDA(report, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(report, ckv_ulysses_attention(p->ulysses, &t->args, stream));
    RANK_CUDA(report, cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(report, cudaGraphInstantiate(graph_out, graph, 0));
    RANK_CUDA(report, cudaGraphDestroy(graph));
}

/* One graph over chunks of 43 tokens, padded on any even number of ranks, until the window has slid; each replay is
 * compared as an eager forward would be. Catches: an epoch, a slot list or a length that was captured by value. */
void ulysses_captured_forward_replays_across_commits(ckv_comm *comm, rank_report *report)
{
    party p;
    cudaStream_t stream;
    cudaGraphExec_t graph = NULL;
    party_tensors t;
    const party_shape shape = shape_for(ckv_comm_size(comm));
    const party_forward forward = {.layer = 1, .seq_len = 43, .causal_block_size = 43, .padding = PADDING_NAN};
    RANK_CUDA(report, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    RANK_STEP(report, party_run(&p, report, &forward)); /* builds plans and memory */
    RANK_STEP(report, party_make(&p, report, &forward, &t));
    RANK_CUDA(report, cudaDeviceSynchronize());
    RANK_STEP(report, capture(&p, report, &t, stream, &graph));
    for (int chunk = 0; chunk < 6; chunk++) {
        RANK_STEP(report, party_renew(&p, report, &forward, &t));
        RANK_CUDA(report, cudaDeviceSynchronize());
        for (int replay = 0; replay < 2; replay++)
            RANK_CUDA(report, cudaGraphLaunch(graph, stream));
        RANK_CUDA(report, cudaStreamSynchronize(stream));
        RANK_OK(report, ckv_comm_async_error(comm));
        RANK_STEP(report, party_compare(&p, report, &forward, &t));
        RANK_STEP(report, party_commit(&p, report, 43));
    }
    RANK_STEP(report, party_run(&p, report, &forward)); /* eager calls go on where the replays stopped */
    RANK_CUDA(report, cudaGraphExecDestroy(graph));
    party_free(&p, &t);
    party_close(&p);
    RANK_CUDA(report, cudaStreamDestroy(stream));
}

/* Memory cannot be had during a capture; all ranks say so, and the same call works afterwards. */
void ulysses_capture_before_the_first_forward_is_refused(ckv_comm *comm, rank_report *report)
{
    party p;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    party_tensors t;
    const party_shape shape = shape_for(ckv_comm_size(comm));
    const party_forward forward = {.seq_len = 44, .causal_block_size = 44};
    RANK_CUDA(report, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANK_STEP(report, party_open(&p, report, comm, &shape));
    RANK_STEP(report, party_make(&p, report, &forward, &t));
    RANK_CUDA(report, cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_STATUS(report, ckv_ulysses_attention(p.ulysses, &t.args, stream), CKV_ERROR_STATE);
    RANK_DETAIL(report, "before the capture");
    RANK_CUDA(report, cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(report, cudaGraphDestroy(graph));
    party_free(&p, &t);
    RANK_STEP(report, party_run(&p, report, &forward));
    party_close(&p);
    RANK_CUDA(report, cudaStreamDestroy(stream));
}
