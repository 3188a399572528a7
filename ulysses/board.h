/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of one machine can see of each other without a message: memory they share, with who they are, what
 * they do, and the first failure. It works while they are stuck, and after one of them has died. */
#ifndef CKV_ULYSSES_BOARD_H
#define CKV_ULYSSES_BOARD_H

#include <ckv/comm.h>

typedef struct ckv_board ckv_board;

/* Collective over `host`: all ranks get one, or, when they are not on one machine, all get NULL and CKV_OK.
 * ERROR_COMM, ERROR_TIMEOUT. */
CKV_NODISCARD ckv_status ckv_board_open(ckv_comm *host, ckv_board **board_out);

/* This rank leaves in good order: that it is gone is no failure any more. Accepts a pointer to NULL. */
void ckv_board_close(ckv_board **board);

/* Show what this rank does. */
void ckv_board_show(ckv_board *board, const ckv_comm_record *record);

/* "rank N (process P) [is in|has done] OPERATION, number S". */
void ckv_board_describe(const ckv_board *board, int rank, char *text, size_t capacity);

/* A rank whose process ended before it left, or -1. */
int ckv_board_find_dead(ckv_board *board);

/* The first failure stands for all ranks. */
void ckv_board_fail(ckv_board *board, ckv_status status, const char *detail);

/* That failure, with its detail, or CKV_OK. */
CKV_NODISCARD ckv_status ckv_board_failure(const ckv_board *board);

#endif
