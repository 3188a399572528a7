/* SPDX-License-Identifier: Apache-2.0 */
/* The mpi transport; in libckv_mpi, so that libckv itself needs no MPI. */
#ifndef CKV_MPI_H
#define CKV_MPI_H

#include <ckv/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator over `mpi_comm`, a pointer to an MPI_Comm, for host memory. Collective over it: the communicator is
 * duplicated, and MPI must stay initialised until ckv_comm_destroy. A one-rank MPI_Comm is not duplicated and never
 * used. A rank that waits longer than timeout_ms (0: 60 s) for the others gets ERROR_TIMEOUT. ERROR_INVALID (NULL, MPI
 * not initialised), ERROR_COMM, ERROR_MEMORY. */
CKV_NODISCARD CKV_API ckv_status ckv_comm_create_mpi(const void *mpi_comm, int64_t timeout_ms, ckv_comm **comm_out);

#ifdef __cplusplus
}
#endif
#endif
