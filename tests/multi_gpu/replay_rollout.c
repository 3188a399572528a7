/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/multi_gpu/replay_rollout.h"

#include "tests/support/rollout_trace.h"
#include "tests/support/trace_run.h"
#include "tests/support/ulysses_party.h"

#include <string.h>

static void run(ckv_comm *comm, rank_report *report, const rollout_spec *spec, int64_t reference_window,
                trace_outcome *outcome)
{
    trace *t = rollout_trace_make(spec);
    RANK_CHECK(report, t != NULL);
    trace_run_options options = trace_run_options_default();
    options.session.device = ckv_test_device();
    options.session.backend = party_uses.backend;
    options.session.exchange = party_uses.exchange;
    options.reference_window = reference_window;
    trace_run(t, comm, &options, outcome);
    trace_free(&t);
    if (outcome->status != CKV_OK)
        rank_fail(report, __FILE__, __LINE__, "exchange %s: %s", party_uses.exchange, outcome->why.text);
    else if (strcmp(outcome->exchange, party_uses.exchange) != 0)
        rank_fail(report, __FILE__, __LINE__, "exchange %s ran, not %s", outcome->exchange, party_uses.exchange);
    else
        RANK_CHECK(report, outcome->forwards == 16);
}

static void sound_rollouts(ckv_comm *comm, rank_report *report)
{
    static const int64_t kv_heads[] = {[CKV_BF16] = 6, [CKV_FP16] = 12};
    for (int dtype = CKV_BF16; dtype <= CKV_FP16 && !report->failed; dtype++) {
        rollout_spec spec = rollout_spec_cudnn(ckv_test_seed() + (uint64_t)dtype, (ckv_dtype)dtype);
        spec.padding = dtype == CKV_BF16 ? ROLLOUT_PADDING_NAN : ROLLOUT_PADDING_RANDOM;
        spec.model.kv_heads = kv_heads[dtype];
        trace_outcome outcome = {0};
        run(comm, report, &spec, -1, &outcome);
        size_t wrong = outcome.wrong;
        trace_outcome_free(&outcome);
        RANK_CHECK(report, wrong == 0);
    }
}

/* Token 14 is the one before the shorter window of the forwards 8 and 9, whose block starts at 28. */
static void check_wrong_rollout(rank_report *report, const trace_outcome *outcome)
{
    RANK_CHECK(report, outcome->results[0].output_ok);
    for (int forward = 8; forward < 10; forward++) {
        RANK_CHECK(report, !outcome->results[forward].output_ok);
        RANK_CHECK(report, outcome->results[forward].explanation.fault == CKV_KEY_EXTRA);
        RANK_CHECK(report, outcome->results[forward].explanation.token == 14);
    }
}

static void wrong_rollout(ckv_comm *comm, rank_report *report)
{
    rollout_spec spec = rollout_spec_cudnn(ckv_test_seed(), CKV_BF16);
    spec.with_expected = false;
    trace_outcome outcome = {0};
    run(comm, report, &spec, spec.window_tokens - 1, &outcome);
    if (!report->failed)
        check_wrong_rollout(report, &outcome);
    trace_outcome_free(&outcome);
}

void replay_sound_rollouts(gpu_transport transport)
{
    gpu_run_exchanges(transport, sound_rollouts);
}

void replay_wrong_rollout(gpu_transport transport)
{
    gpu_run_exchanges(transport, wrong_rollout);
}
