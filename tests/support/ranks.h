/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies that several ranks run at once, over any transport. A body may run on a thread that CMocka knows nothing of,
 * and must not leave through a jump, so it reports instead of asserting. After a failed check a rank leaves its body;
 * the others then run into the deadline of their communicator, not into a hang. */
#ifndef CKV_TESTS_SUPPORT_RANKS_H
#define CKV_TESTS_SUPPORT_RANKS_H

#include <ckv/comm.h>

typedef struct rank_report {
    int failed;
    char text[640]; /* of the first failure */
} rank_report;

typedef void (*rank_body)(ckv_comm *comm, rank_report *report);

void rank_fail(rank_report *report, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define RANK_CHECK(report, condition)                                                                                  \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            rank_fail(report, __FILE__, __LINE__, "%s", #condition);                                                   \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* A ckv call must return exactly `expected`. */
#define RANK_STATUS(report, call, expected)                                                                            \
    do {                                                                                                               \
        ckv_status rank_status_ = (call);                                                                              \
        if (rank_status_ != (expected)) {                                                                              \
            rank_fail(report, __FILE__, __LINE__, "%s is %s, not %s: %s", #call, ckv_status_name(rank_status_),        \
                      ckv_status_name(expected), ckv_last_error());                                                    \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

#define RANK_OK(report, call) RANK_STATUS(report, call, CKV_OK)

/* ckv_last_error() must contain `text`. */
#define RANK_DETAIL(report, text)                                                                                      \
    do {                                                                                                               \
        if (strstr(ckv_last_error(), text) == NULL) {                                                                  \
            rank_fail(report, __FILE__, __LINE__, "no \"%s\" in: %s", text, ckv_last_error());                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* How long a rank of a case waits for the others: most_ms, or a quarter of the case's deadline (CKV_TEST_TIMEOUT, in
 * seconds) if that is less. */
int64_t ranks_patience_ms(int64_t most_ms);

/* A step that reports; leave when it did. */
#define RANK_STEP(report, step)                                                                                        \
    do {                                                                                                               \
        step;                                                                                                          \
        if ((report)->failed)                                                                                          \
            return;                                                                                                    \
    } while (0)

/* Run `body` on `ranks` threads over the threads transport; the first rank's failure, or an empty string. The text
 * stays until the next call. */
const char *ranks_run_on_threads(int ranks, int64_t timeout_ms, rank_body body);

/* The same over the self transport, on the calling thread. */
const char *ranks_run_on_self(rank_body body);

/* The same in forked processes over the transport of tests/support/comm_pipe.h; the caller has no other threads and has
 * never used CUDA, which no child could use then. When it returns, none of the processes is left. One that ends before
 * its body does is a failure, unless by rank_die. */
const char *ranks_run_on_processes(int ranks, int64_t timeout_ms, rank_body body);

/* Inside of such a body: this rank's process is killed, on whichever of its threads; and whether another rank's process
 * has ended and been waited for. */
_Noreturn void rank_die(void);
int rank_has_ended(int rank);

#endif
