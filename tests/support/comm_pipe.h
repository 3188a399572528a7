/* SPDX-License-Identifier: Apache-2.0 */
/* A host transport between processes that one parent forks: sockets for messages, the parent's memory for windows. It
 * needs no MPI, so that a rank can be killed and the others go on.
 *
 * A rank that has ended is one that does not come: ERROR_TIMEOUT, once the deadline or COMM_PIPE_GRACE_MS is over,
 * whichever is first. The grace is for a transport on top of this one, which may know better what happened
 * once the process is gone, which takes a while when it has used a GPU. */
#ifndef CKV_TESTS_SUPPORT_COMM_PIPE_H
#define CKV_TESTS_SUPPORT_COMM_PIPE_H

#include <ckv/comm.h>

enum { COMM_PIPE_GRACE_MS = 2000, COMM_PIPE_MAX_RANKS = 8, COMM_PIPE_WINDOW_BYTES = 1 << 26 /* of a rank, together */ };

typedef struct comm_pipe comm_pipe;

/* In the parent, before any rank is forked. ERROR_MEMORY. */
ckv_status comm_pipe_open(int ranks, comm_pipe **pipe_out);

/* In the process that plays `rank`, once; the pipe is closed with the communicator. ERROR_MEMORY. */
ckv_status comm_pipe_join(comm_pipe *pipe, int rank, int64_t timeout_ms, ckv_comm **comm_out);

/* In the parent, when every rank is forked: while it is open nobody sees that a rank has ended. */
void comm_pipe_close(comm_pipe *pipe);

#endif
