/* SPDX-License-Identifier: Apache-2.0 */
/* `ckv bench exchange` over MPI: which rows there are on every rank, and the reason for those that are not. */
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
    assert_non_null(strstr(bench_results_fact_value(results, "fused"), "no memory that other ranks can address"));
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

static const ckv_test_case cases[] = {CKV_CASE(exchange_over_mpi)};

CKV_MPI_TEST_MAIN("bench_mpi", cases)
