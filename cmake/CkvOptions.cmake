# SPDX-License-Identifier: Apache-2.0
# Every switch of the build. AUTO takes what is there, ON fails without it, OFF leaves it out.
foreach(feature MPI CUDA CUDNN NCCL)
  set(CKV_${feature} AUTO CACHE STRING "Build with ${feature}: AUTO, ON or OFF")
  set_property(CACHE CKV_${feature} PROPERTY STRINGS AUTO ON OFF)
  if(NOT CKV_${feature} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "CKV_${feature} is '${CKV_${feature}}'; it must be AUTO, ON or OFF")
  endif()
endforeach()

option(CKV_TOOLS "Build the ckv program" ${PROJECT_IS_TOP_LEVEL})
option(CKV_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(CKV_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CKV_FUZZ "Build libFuzzer targets (clang only)" OFF)
option(CKV_WERROR "Treat warnings as errors" OFF)
option(CKV_CHECKS "Check the cache's invariants after every operation" OFF)
set(CKV_SANITIZE "" CACHE STRING "Sanitizers: empty, address, undefined, thread, or a comma-separated list")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  set(CKV_CHECKS ON)
endif()
