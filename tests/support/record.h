/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a run: one JSON object per line, each written by one write(). Everything here but record_open may be
 * called from a signal handler. */
#ifndef CKV_TESTS_SUPPORT_RECORD_H
#define CKV_TESTS_SUPPORT_RECORD_H

#include <ckv/comm.h>
#include <stddef.h>
#include <stdint.h>

/* Open CKV_TEST_RECORD for this rank, when it is set; with `redirect_output`, standard output and error go to a file
 * beside it. 0, or -1 with errno. */
int record_open(int rank, int redirect_output);

typedef struct record_line {
    char text[2048]; /* what does not fit is cut */
    size_t length;
} record_line;

void record_begin(record_line *line, const char *event); /* event, rank, time (seconds, CLOCK_MONOTONIC) */
void record_text(record_line *line, const char *key, const char *value);
void record_number(record_line *line, const char *key, int64_t value);
void record_end(record_line *line);

/* Where this rank's communication stands: operation, sequence, bytes, in_progress. Nothing without a source. */
void record_operation(record_line *line);
void record_set_operation_source(ckv_comm_record (*last_operation)(const ckv_comm *), const ckv_comm *comm);

/* The event "state", with `reason`. */
void record_state(const char *reason);

#endif
