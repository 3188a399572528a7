# SPDX-License-Identifier: Apache-2.0
# CKV_HAVE_MPI: the mpi transport, libckv_mpi, and multi-rank tests under mpirun.
set(CKV_HAVE_MPI OFF)
if(NOT CKV_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    set(CKV_HAVE_MPI ON)
  elseif(CKV_MPI STREQUAL "ON")
    message(FATAL_ERROR "CKV_MPI=ON, but no MPI was found: install libopenmpi-dev and openmpi-bin, or use CKV_MPI=AUTO")
  endif()
endif()
add_feature_info(MPI CKV_HAVE_MPI "mpi transport and multi-rank tests")
