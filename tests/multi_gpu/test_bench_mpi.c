/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv bench` over MPI: which rows there are on every rank, and the reason for those that are not. */
#include "lib/device/device.h"
#include "tests/support/mpi_case.h"
#include "tools/bench/options.h"
#include "tools/common/cli.h"

#include <ckv/mpi.h>
#include <stdio.h>
#include <string.h>

static void exchange_over_mpi(void **state)
{
    (void)state;
    ckv_comm *comm = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    ckv_test_set_comm(comm);
    bench_options options = {.geometry = {.q_heads = 6, .kv_heads = 6, .head_dim = 8},
                             .page = 4,
                             .dtype = CKV_FP16,
                             .runs = 2,
                             .sizes = {1, 5},
                             .num_sizes = 2,
                             .benchmark = "exchange",
                             .device = &ckv_device_host,
                             .host = comm,
                             .comm = comm,
                             .speaks = ckv_comm_rank(comm) == 0,
                             .launch = BENCH_EAGER};
    bench_results *results = bench_results_create();
    assert_int_equal(bench_exchange(&options, results), CLI_OK);
    const char *fused = bench_results_fact_value(results, "fused");
    assert_non_null(fused);
    assert_non_null(strstr(fused, "no memory that other ranks can address"));
    assert_int_equal(bench_results_count(results), 2 * (3 + 2)); /* sendrecv three ways, raw two */
    assert_int_equal(bench_results_failures(results), 0);
    char params[64];
    snprintf(params, sizeof params, "tokens 1, %d ranks, mpi", ckv_test_ranks());
    assert_string_equal(bench_results_row(results, 0)->params, params);
    for (size_t i = 0; i < bench_results_count(results); i++)
        assert_true(bench_results_row(results, i)->median_us > 0);
    bench_results_destroy(&results);
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(&comm);
}

/* A rollout whose chunk the ranks have to pad. */
static bench_options rollout_options(ckv_comm *comm)
{
    return (bench_options){.geometry = {.name = "tiny",
                                        .q_heads = 12,
                                        .kv_heads = 6,
                                        .head_dim = 8,
                                        .layers = 2,
                                        .frame_tokens = 5,
                                        .chunk_frames = 5,
                                        .window_frames = 9,
                                        .pin_tokens = 7,
                                        .denoising_forwards = 2,
                                        .clean_in_frames = 1},
                           .page = 4,
                           .dtype = CKV_BF16,
                           .pages = CKV_BF16,
                           .runs = 2,
                           .tolerance = -1,
                           .exchange = "auto",
                           .device = &ckv_device_host,
                           .host = comm,
                           .comm = comm,
                           .speaks = ckv_comm_rank(comm) == 0,
                           .launch = BENCH_EAGER};
}

/* Every rank has checked the same result, and says the same of it. */
static void rollouts_over_mpi(void **state)
{
    (void)state;
    static const struct {
        int (*run)(const bench_options *options, bench_results *results);
        size_t rows;
    } benchmarks[] = {{bench_attention, 6}, {bench_chunk_cycle, 4}, {bench_write, 4}};
    ckv_comm *comm = NULL;
    assert_ok(ckv_comm_create_mpi(ckv_test_mpi_comm(), 0, &comm));
    ckv_test_set_comm(comm);
    for (size_t i = 0; i < sizeof benchmarks / sizeof benchmarks[0]; i++) {
        for (int wrong = 0; wrong <= 1; wrong++) {
            bench_options options = rollout_options(comm);
            bench_results *results = bench_results_create();
            options.tolerance = wrong ? 0 : -1;
            assert_int_equal(benchmarks[i].run(&options, results), CLI_OK);
            assert_int_equal(bench_results_count(results), benchmarks[i].rows);
            assert_int_equal(bench_results_failures(results) > 0, wrong);
            bench_results_destroy(&results);
        }
    }
    ckv_test_set_comm(NULL);
    ckv_comm_destroy(&comm);
}

static const ckv_test_case cases[] = {CKV_CASE(exchange_over_mpi), CKV_CASE(rollouts_over_mpi)};

CKV_MPI_TEST_MAIN("bench_mpi", cases)
