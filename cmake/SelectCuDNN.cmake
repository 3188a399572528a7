# SPDX-License-Identifier: Apache-2.0
# CKV_HAVE_CUDNN: headers and library of cuDNN, from CUDNN_ROOT or the usual places.
set(CKV_HAVE_CUDNN OFF)
if(CKV_HAVE_CUDA AND NOT CKV_CUDNN STREQUAL "OFF")
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES include)
  find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES lib lib64)
  if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY)
    set(CKV_HAVE_CUDNN ON)
  endif()
endif()
if(CKV_CUDNN STREQUAL "ON" AND NOT CKV_HAVE_CUDNN)
  message(FATAL_ERROR "CKV_CUDNN=ON, but cuDNN (or CUDA) was not found: set CUDNN_ROOT, or use CKV_CUDNN=AUTO")
endif()
add_feature_info(cuDNN CKV_HAVE_CUDNN "cuDNN found (the cudnn backend is not implemented yet)")
