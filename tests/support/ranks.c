/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16 };

typedef struct player {
    pthread_t thread;
    ckv_comm *comm;
    rank_body body;
    rank_report report;
} player;

static char first_failure[800];

void rank_fail(rank_report *report, const char *file, int line, const char *format, ...)
{
    if (report->failed)
        return;
    report->failed = 1;
    int length = snprintf(report->text, sizeof report->text, "%s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->text + length, sizeof report->text - (size_t)length, format, arguments);
    va_end(arguments);
}

static void *play(void *argument)
{
    player *self = argument;
    self->body(self->comm, &self->report);
    if (self->report.failed)
        ckv_comm_destroy(&self->comm); /* so that nobody waits for it */
    return NULL;
}

int64_t ranks_patience_ms(int64_t most_ms)
{
    const char *timeout = getenv("CKV_TEST_TIMEOUT");
    int64_t quarter_ms = timeout != NULL ? 250 * (int64_t)strtol(timeout, NULL, 10) : 0;
    return quarter_ms > 0 && quarter_ms < most_ms ? quarter_ms : most_ms;
}

const char *ranks_run_on_threads(int ranks, int64_t timeout_ms, rank_body body)
{
    player players[MAX_RANKS];
    ckv_comm *comms[MAX_RANKS];
    memset(players, 0, sizeof players);
    first_failure[0] = '\0';
    if (ranks > MAX_RANKS || ckv_comm_create_threads(ranks, timeout_ms, comms) != CKV_OK) {
        snprintf(first_failure, sizeof first_failure, "no group of %d threads: %s", ranks, ckv_last_error());
        return first_failure;
    }
    int started = 0;
    for (; started < ranks; started++) {
        players[started].comm = comms[started];
        players[started].body = body;
        if (pthread_create(&players[started].thread, NULL, play, &players[started]) != 0)
            break;
    }
    for (int rank = 0; rank < started; rank++)
        pthread_join(players[rank].thread, NULL);
    for (int rank = 0; rank < ranks; rank++)
        ckv_comm_destroy(rank < started ? &players[rank].comm : &comms[rank]);
    if (started < ranks)
        snprintf(first_failure, sizeof first_failure, "only %d of %d threads started", started, ranks);
    for (int rank = ranks - 1; rank >= 0; rank--)
        if (players[rank].report.failed)
            snprintf(first_failure, sizeof first_failure, "rank %d of %d: %s", rank, ranks, players[rank].report.text);
    return first_failure;
}

const char *ranks_run_on_self(rank_body body)
{
    player self = {.body = body};
    first_failure[0] = '\0';
    if (ckv_comm_create_self(&self.comm) != CKV_OK)
        return "no self communicator";
    play(&self);
    ckv_comm_destroy(&self.comm);
    if (self.report.failed)
        snprintf(first_failure, sizeof first_failure, "self: %s", self.report.text);
    return first_failure;
}
