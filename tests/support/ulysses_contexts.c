/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and the path of their exchange. Each case says which mistakes it is there to catch. */
#include "tests/support/ulysses_cases.h"

#include "tests/support/ulysses_usual.h"

#include <stdio.h>
#include <string.h>

/* Two models with different heads, interleaved; one is destroyed while the other goes on. Catches: state of one used
 * for the other. */
void ulysses_two_contexts_live_side_by_side(ckv_comm *comm, rank_report *report)
{
    party narrow, wide;
    party_shape shape = small_shape(ckv_comm_size(comm));
    RANK_STEP(report, party_open(&narrow, report, comm, &shape));
    shape.kv_heads *= 3;
    shape.q_heads = shape.kv_heads;
    shape.head_dim = 16;
    shape.dtype = CKV_BF16;
    RANK_STEP(report, party_open(&wide, report, comm, &shape));
    for (int chunk = 0; chunk < 3; chunk++) {
        RANK_STEP(report, still_works(&narrow, report));
        RANK_STEP(report, still_works(&wide, report));
    }
    party_close(&wide);
    RANK_STEP(report, still_works(&narrow, report));
    party_close(&narrow);
}

/* Padded messages and unpadded parts over the path of the run, and a third with fewer K/V heads than ranks. Catches:
 * memory, flags or counts of one exchange used by another. */
void ulysses_contexts_differ_in_sharding_and_path(ckv_comm *comm, rank_report *report)
{
    int ranks = ckv_comm_size(comm);
    party parties[3];
    party_shape shapes[3] = {small_shape(ranks), small_shape(ranks), small_shape(ranks)};
    shapes[0].exchange = "sendrecv";
    shapes[1].sharding = CKV_SHARDS_UNPADDED;
    shapes[1].kv_heads = 2 * ranks;
    shapes[1].overlap_parts = 2;
    shapes[2].kv_heads = 1;
    for (int i = 0; i < 3; i++)
        RANK_STEP(report, party_open(&parties[i], report, comm, &shapes[i]));
    const party_forward clean = {.layer = 1, .seq_len = 44, .causal_block_size = 11, .padding = PADDING_NAN};
    for (int chunk = 0; chunk < 3; chunk++)
        for (int i = 0; i < 3; i++) {
            RANK_STEP(report, still_works(&parties[i], report));
            RANK_STEP(report, party_run(&parties[i], report, &clean));
        }
    for (int i = 0; i < 3; i++)
        party_close(&parties[i]);
}

/* --- The path of the exchange --- */

static ckv_status create_with(ckv_comm *comm, const char *exchange, ckv_ulysses **ulysses_out)
{
    party_shape shape = small_shape(ckv_comm_size(comm));
    shape = party_fit(&shape);
    ckv_ulysses_config config = party_config(&shape);
    config.exchange = exchange;
    return ckv_ulysses_create(comm, &config, ulysses_out);
}

/* What a context made with this wish says of itself. */
static void expect_path(ckv_comm *comm, rank_report *report, const char *wish, const char *path, const char *why_not)
{
    ckv_ulysses *ulysses = NULL;
    const char *reason = NULL;
    RANK_OK(report, create_with(comm, wish, &ulysses));
    RANK_CHECK(report, strcmp(ckv_ulysses_exchange(ulysses, &reason), path) == 0);
    RANK_CHECK(report, strcmp(ckv_ulysses_exchange(ulysses, NULL), path) == 0);
    if (strcmp(reason, why_not) != 0)
        rank_fail(report, __FILE__, __LINE__, "\"%s\" where \"%s\" belongs", reason, why_not);
    ckv_ulysses_destroy(&ulysses);
}

/* Catches: a wish that is not granted and not refused either, a fallback without its reason, ranks on different
 * paths. */
void ulysses_exchange_says_which_and_why(ckv_comm *comm, rank_report *report)
{
    static const char *const automatic[] = {NULL, "auto"};
    char why_not[256] = "";
    if (ckv_comm_size(comm) == 1) {
        RANK_STEP(report, expect_path(comm, report, NULL, "none", "one rank has nothing to exchange"));
        return;
    }
    RANK_STEP(report, expect_path(comm, report, "sendrecv", "sendrecv", "sendrecv was asked for"));
    ckv_ulysses *ulysses = NULL;
    ckv_status status = create_with(comm, "fused", &ulysses);
    if (status == CKV_OK) {
        ckv_ulysses_destroy(&ulysses);
        RANK_STEP(report, expect_path(comm, report, "fused", "fused", ""));
    } else {
        RANK_STATUS(report, status, CKV_ERROR_UNSUPPORTED);
        snprintf(why_not, sizeof why_not, "%s", ckv_last_error());
        RANK_CHECK(report, strncmp(why_not, "rank 0: ", 8) == 0);
    }
    int mine = status == CKV_OK, all[64];
    RANK_OK(report, ckv_comm_all_gather(comm, &mine, sizeof mine, all));
    for (int rank = 0; rank < ckv_comm_size(comm); rank++)
        RANK_CHECK(report, all[rank] == mine);
    for (int i = 0; i < 2; i++)
        RANK_STEP(report, expect_path(comm, report, automatic[i], mine ? "fused" : "sendrecv", why_not));
}

/* Catches: a wish that one rank cannot read while the others wait for it; ranks that wish for different paths. */
void ulysses_wrong_wishes_are_refused(ckv_comm *comm, rank_report *report)
{
    int rank = ckv_comm_rank(comm), ranks = ckv_comm_size(comm);
    ckv_ulysses *ulysses = NULL;
    for (int odd = 0; odd < ranks && ranks > 1; odd++) {
        char detail[64];
        snprintf(detail, sizeof detail, "rank %d: exchange: there is no 'quick'", odd);
        RANK_STATUS(report, create_with(comm, rank == odd ? "quick" : "sendrecv", &ulysses), CKV_ERROR_INVALID);
        RANK_DETAIL(report, detail);
        RANK_STATUS(report, create_with(comm, rank == odd ? "auto" : "sendrecv", &ulysses), CKV_ERROR_INVALID);
        RANK_DETAIL(report, "ranks differ in the exchange asked for");
    }
    RANK_CHECK(report, ulysses == NULL);
    party p;
    RANK_STEP(report, open_usual(&p, report, comm));
    party_close(&p);
}
