/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/mpi_case.h"

#include "tests/support/case_run.h"
#include "tests/support/leaks.h"
#include "tests/support/record.h"
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double join_failed_s = 1.0; /* a failed rank waits this long for the others */
static const double default_timeout_s = 60;

static struct {
    int rank, ranks;
    double timeout_s;
    double deadline;
    MPI_Comm agreement; /* nothing but agreements travels here */
    MPI_Comm of_case;   /* the case's own */
    bool concluded;     /* the ranks have agreed that this case failed */
    bool failed;        /* some case has */
    int64_t points;     /* agreements of this case so far */
} job = {.ranks = 1, .agreement = MPI_COMM_NULL, .of_case = MPI_COMM_NULL};

int ckv_test_rank(void)
{
    return job.rank;
}

int ckv_test_ranks(void)
{
    return job.ranks;
}

const void *ckv_test_mpi_comm(void)
{
    return &job.of_case;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* --- Agreement --- */

/* What a rank brings to an agreement; the maximum over the ranks decides. */
enum { FAILED, SKIPPED, NOT_SKIPPED, POINT, MINUS_POINT, RANKS_MINUS_FAILED, NUM_VOTES };

/* The same on two ranks only if both are at the same point: how many came before, and a hash (FNV-1a) of the name. */
static int64_t point_identity(const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return job.points << 32 | hash;
}

/* The other ranks do not come. The job ends here. */
static _Noreturn void give_up(const char *point, bool failed)
{
    if (failed) {
        record_state("no other rank joined a failed one");
        fprintf(stderr, "rank %d has failed and the others do not reach '%s': aborting the job\n", job.rank, point);
    } else {
        record_line line;
        record_begin(&line, "hang");
        record_text(&line, "point", point);
        record_operation(&line);
        record_end(&line);
        fprintf(stderr, "rank %d waited at '%s' until the deadline of %g s: aborting the job\n", job.rank, point,
                job.timeout_s);
    }
    int code = failed ? CKV_TEST_FAIL : CKV_TEST_HANG;
    case_conclude(code);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, code);
    _Exit(code);
}

static void collect(const int64_t *mine, int64_t *all, const char *point)
{
    /* static: an abandoned reduction may still write here while the job is being aborted */
    static int64_t sent[NUM_VOTES], received[NUM_VOTES];
    MPI_Request request;
    int done = 0;
    memcpy(sent, mine, sizeof sent);
    /* NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker): completed by MPI_Test, or abandoned with the job */
    MPI_Iallreduce(sent, received, NUM_VOTES, MPI_INT64_T, MPI_MAX, job.agreement, &request);
    double until = mine[FAILED] ? now() + join_failed_s : job.deadline;
    for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) {
        if (now() > until)
            give_up(point, mine[FAILED]);
        struct timespec time = {.tv_nsec = 200000};
        nanosleep(&time, NULL);
    }
    memcpy(all, received, sizeof received);
    /* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */
}

/* This rank's verdict in, everybody's out. */
static int agree(const char *point, int verdict)
{
    bool failed = verdict == CKV_TEST_FAIL, skipped = verdict == CKV_TEST_SKIP;
    int64_t identity = point_identity(point), all[NUM_VOTES];
    const int64_t mine[NUM_VOTES] = {
        [FAILED] = failed,  [SKIPPED] = skipped,       [NOT_SKIPPED] = !skipped,
        [POINT] = identity, [MINUS_POINT] = -identity, [RANKS_MINUS_FAILED] = failed ? job.ranks - job.rank : 0};
    collect(mine, all, point);
    job.points++;
    if (all[FAILED]) {
        if (!failed)
            fprintf(stderr, "rank %d failed; rank %d leaves the case at '%s'\n",
                    job.ranks - (int)all[RANKS_MINUS_FAILED], job.rank, point);
        return CKV_TEST_FAIL;
    }
    if (all[SKIPPED] && all[NOT_SKIPPED]) {
        case_tell_failure(skipped ? "skipped on this rank, but not on all" : "not skipped on this rank, but on others");
        return CKV_TEST_FAIL;
    }
    if (all[POINT] != -all[MINUS_POINT]) {
        char text[256];
        snprintf(text, sizeof text, "the ranks are at different check points, this one at '%s'", point);
        case_tell_failure(text);
        return CKV_TEST_FAIL;
    }
    return verdict;
}

void ckv_test_check_point(const char *name)
{
    if (agree(name, CKV_TEST_PASS) != CKV_TEST_FAIL)
        return;
    job.concluded = true;
    case_leave(CKV_TEST_FAIL);
}

/* --- What case_main calls --- */

/* The rank, before MPI_Init can say it: output is redirected before MPI prints anything. */
static int rank_of_environment(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL)
            return atoi(value);
    }
    return 0;
}

/* A runner names the GPUs of a case, one for each rank; this rank sees its own and no other. Before anything starts
 * CUDA, as MPI may. */
static void take_own_gpu(int rank)
{
    const char *gpus = getenv("CKV_TEST_RANK_GPUS");
    for (int skipped = 0; gpus != NULL && skipped < rank; skipped++) {
        gpus = strchr(gpus, ',');
        gpus += gpus != NULL;
    }
    if (gpus == NULL || gpus[0] == '\0')
        return;
    char own[128];
    snprintf(own, sizeof own, "%.*s", (int)strcspn(gpus, ","), gpus);
    setenv("CUDA_VISIBLE_DEVICES", own, 1);
}

static int start(int *rank_out, int *ranks_out)
{
    int expected = rank_of_environment();
    take_own_gpu(expected);
    if (record_open(expected, true) != 0) {
        perror("CKV_TEST_RECORD");
        return CKV_TEST_INFRASTRUCTURE;
    }
    leaks_ignore_begin();
    MPI_Init(NULL, NULL);
    leaks_ignore_end();
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    if (job.rank != expected) {
        fprintf(stderr, "MPI says this is rank %d, the environment says %d\n", job.rank, expected);
        MPI_Abort(MPI_COMM_WORLD, CKV_TEST_INFRASTRUCTURE);
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &job.agreement);
    const char *timeout = getenv("CKV_TEST_TIMEOUT");
    job.timeout_s = timeout != NULL && atof(timeout) > 0 ? atof(timeout) : default_timeout_s;
    *rank_out = job.rank;
    *ranks_out = job.ranks;
    return 0;
}

static void begin(void)
{
    job.concluded = false;
    job.points = 0;
    job.deadline = now() + job.timeout_s;
    MPI_Comm_dup(job.agreement, &job.of_case);
}

/* A failed case may have left messages under way in its communicator, so that one is never freed. */
static int settle(int verdict)
{
    if (!job.concluded)
        verdict = agree("the end of the case", verdict);
    if (verdict == CKV_TEST_FAIL)
        job.failed = true;
    else
        MPI_Comm_free(&job.of_case);
    return verdict;
}

/* MPI_Finalize waits for the other ranks, without a deadline; after a failure nobody knows what it would wait for. */
static void finish(int code)
{
    if (job.failed) {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    MPI_Comm_free(&job.agreement);
    leaks_check();
    MPI_Finalize();
}

int ckv_test_mpi_main(const char *suite, const ckv_test_case *cases, size_t num_cases, int argc, char **argv)
{
    static const case_ranks ranks = {.start = start, .begin = begin, .settle = settle, .finish = finish};
    return case_main(suite, cases, num_cases, argc, argv, &ranks);
}
