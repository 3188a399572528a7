# SPDX-License-Identifier: Apache-2.0
# CKV_HAVE_NCCL: headers and library of NCCL, from NCCL_ROOT or the usual places.
set(CKV_HAVE_NCCL OFF)
if(CKV_HAVE_CUDA AND NOT CKV_NCCL STREQUAL "OFF")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ENV NCCL_ROOT PATH_SUFFIXES include)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT} ENV NCCL_ROOT PATH_SUFFIXES lib lib64)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(CKV_HAVE_NCCL ON)
  endif()
endif()
if(CKV_NCCL STREQUAL "ON" AND NOT CKV_HAVE_NCCL)
  message(FATAL_ERROR "CKV_NCCL=ON, but NCCL (or CUDA) was not found: set NCCL_ROOT, or use CKV_NCCL=AUTO")
endif()
add_feature_info(NCCL CKV_HAVE_NCCL "NCCL found (the nccl transport is not implemented yet)")
