# SPDX-License-Identifier: Apache-2.0
# ckv_flags: what every C file of the project is compiled with. Never exported.
add_library(ckv_flags INTERFACE)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
target_compile_definitions(ckv_flags INTERFACE _GNU_SOURCE $<$<BOOL:${CKV_CHECKS}>:CKV_CHECKS=1>
  $<$<BOOL:${CKV_MUTANTS}>:CKV_MUTANTS=1>)
target_compile_options(ckv_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wpointer-arith -Wcast-qual -Wundef -Wformat=2 -Wvla -fno-common>
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<BOOL:${CKV_WERROR}>>:-Werror>)
# Kernels use no C++ library: libckv is linked as C.
target_compile_options(ckv_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics>
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${CKV_WERROR}>>:--Werror=all-warnings>)
if(CKV_SANITIZE)
  target_compile_options(ckv_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fsanitize=${CKV_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(ckv_flags INTERFACE -fsanitize=${CKV_SANITIZE})
  if(CKV_SANITIZE MATCHES "undefined")
    target_compile_options(ckv_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-fno-sanitize-recover=undefined>)
  endif()
endif()
if(CKV_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "CKV_FUZZ needs clang; this is ${CMAKE_C_COMPILER_ID}")
  endif()
  # coverage feedback in every file; the driver itself is linked by ckv_add_fuzz
  target_compile_options(ckv_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(ckv_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR})
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Add sources of the current folder to libckv.
function(ckv_sources)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set_property(GLOBAL APPEND PROPERTY CKV_SOURCES ${ARGN})
endfunction()
