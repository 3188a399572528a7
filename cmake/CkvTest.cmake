# SPDX-License-Identifier: Apache-2.0
# ckv_add_test(SUITE SOURCES FILE... [CASES_FROM FILE...] [RANKS N...] [LIBS TARGET...] [NEEDS FEATURE...]
#              [TIMEOUT SECONDS] [LABELS NAME...] [ARGS ARG...] [GPUS N] [ALONE] [FORKS N])
# ckv_add_test(SUITE PROGRAM TARGET [NEEDS FEATURE...] [TIMEOUT SECONDS] [LABELS NAME...] [ARGS ARG...])
#
# One program test_SUITE, or another suite's PROGRAM once more with other ARGS. Its cases are every CKV_CASE(name) of the
# sources and every X(name) of the shared tables in CASES_FROM. One CTest test SUITE.CASE per case, or with RANKS one
# SUITE.CASE-npN per case and N, for programs with CKV_MPI_TEST_MAIN. TIMEOUT (60) is the deadline of one case; LABELS is
# "host" unless given; "cuda" says that each rank needs a GPU, or all ranks together GPUS. ALONE (one rank): no other test
# runs beside a case. FORKS (one rank): a case has N ranks of its own, which take CPUs and GPUs. Every test runs under
# ckv_case_launch, so 77 means that all ranks skipped.
# A suite that NEEDS something this build lacks (MPI, CUDA, ...) is not built or run, but its names still count: every name
# goes to test_cases.txt in the build folder, where `ckv lists check` reads it.
function(ckv_write_test_names)
  get_property(names GLOBAL PROPERTY CKV_TEST_NAMES)
  list(SORT names)
  list(JOIN names "\n" text)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_cases.txt CONTENT "${text}\n" @ONLY)
endfunction()
cmake_language(DEFER DIRECTORY ${PROJECT_SOURCE_DIR} CALL ckv_write_test_names)

# MPI libraries keep memory until the end, and say so to nobody; other leaks still count. An allocation that is too large
# fails under sanitizers as it does elsewhere, for the cases that ask for one.
set(CKV_TEST_ENVIRONMENT "")
if(CKV_SANITIZE)
  set(CKV_TEST_ENVIRONMENT "ASAN_OPTIONS=allocator_may_return_null=1" "TSAN_OPTIONS=allocator_may_return_null=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0")
endif()

# The deadline of the case is the launcher's; CTest's own is for a launcher that fails, and leaves time for one that follows
# another rank's (mpirun -np 2 ctest).
function(ckv_add_case built name program case ranks timeout gpus labels arguments)
  set_property(GLOBAL APPEND PROPERTY CKV_TEST_NAMES ${name})
  if(NOT built)
    return()
  endif()
  add_test(NAME ${name} COMMAND ckv_case_launch --name ${name} --ranks ${ranks} --timeout ${timeout}
    --record-dir ${PROJECT_BINARY_DIR}/test_records -- $<TARGET_FILE:${program}> ${case} ${arguments})
  math(EXPR backstop "2 * ${timeout} + 60")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${backstop} PROCESSORS ${ranks} LABELS "${labels}"
    SKIP_RETURN_CODE 77 ENVIRONMENT "${CKV_TEST_ENVIRONMENT}")
  if("cuda" IN_LIST labels)
    if(NOT gpus)
      set(gpus ${ranks})
    endif()
    set_tests_properties(${name} PROPERTIES RESOURCE_GROUPS "${gpus},gpus:1")
  endif()
endfunction()

# Names of cases, in the order of the files; a file that changes configures again. Macros about cases are no cases.
function(ckv_read_cases macro names_out)
  set(names "")
  foreach(file IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH file NORMALIZE)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} text)
    string(REGEX REPLACE "(^|\n)#[^\n]*" "\n" text "${text}")
    string(REGEX MATCHALL "[ {]${macro}\\([A-Za-z0-9_]+\\)" found "${text}")
    list(TRANSFORM found REPLACE ".*\\((.*)\\)" "\\1")
    list(APPEND names ${found})
  endforeach()
  set(${names_out} ${names} PARENT_SCOPE)
endfunction()

function(ckv_add_test suite)
  cmake_parse_arguments(PARSE_ARGV 1 test "ALONE" "TIMEOUT;PROGRAM;FORKS;GPUS"
    "SOURCES;CASES_FROM;RANKS;LIBS;LABELS;ARGS;NEEDS")
  if(test_UNPARSED_ARGUMENTS OR (NOT test_SOURCES AND NOT test_PROGRAM))
    message(FATAL_ERROR "ckv_add_test(${suite}): needs SOURCES or PROGRAM; does not know '${test_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 60)
  endif()
  if(NOT test_LABELS AND NOT test_RANKS)
    set(test_LABELS host)
  endif()
  set(built ON)
  foreach(feature IN LISTS test_NEEDS)
    if(NOT CKV_HAVE_${feature})
      set(built OFF)
    endif()
  endforeach()

  set(program ${test_PROGRAM})
  if(test_SOURCES)
    set(program test_${suite})
    ckv_read_cases(X shared_cases ${test_CASES_FROM})
    ckv_read_cases(CKV_CASE own_cases ${test_SOURCES})
    set_property(GLOBAL PROPERTY CKV_CASES_${program} ${shared_cases} ${own_cases})
    if(built)
      add_executable(${program} ${test_SOURCES})
      target_link_libraries(${program} PRIVATE $<IF:$<BOOL:${test_RANKS}>,ckv_test_mpi,ckv_test_support> ${test_LIBS})
    endif()
  endif()
  get_property(cases GLOBAL PROPERTY CKV_CASES_${program})
  if(NOT cases)
    message(FATAL_ERROR "ckv_add_test(${suite}): no CKV_CASE(name) in ${test_SOURCES}")
  endif()

  foreach(case IN LISTS cases)
    if(test_RANKS)
      foreach(ranks IN LISTS test_RANKS)
        ckv_add_case(${built} ${suite}.${case}-np${ranks} ${program} ${case} ${ranks} ${test_TIMEOUT}
          "${test_GPUS}" "mpi;np${ranks};${test_LABELS}" "${test_ARGS}")
      endforeach()
    else()
      ckv_add_case(${built} ${suite}.${case} ${program} ${case} 1 ${test_TIMEOUT} "${test_GPUS}"
        "${test_LABELS}" "${test_ARGS}")
      if(built AND test_ALONE)
        set_tests_properties(${suite}.${case} PROPERTIES RUN_SERIAL ON)
      endif()
      if(built AND test_FORKS)
        set_tests_properties(${suite}.${case} PROPERTIES PROCESSORS ${test_FORKS})
        if("cuda" IN_LIST test_LABELS)
          set_tests_properties(${suite}.${case} PROPERTIES RESOURCE_GROUPS "${test_FORKS},gpus:1")
        endif()
      endif()
    endif()
  endforeach()
endfunction()

# ckv_add_command(NAME TIMEOUT_SECONDS COMMAND ARG...): a test that is no program of ours with cases.
function(ckv_add_command name timeout)
  add_test(NAME ${name} COMMAND ckv_case_launch --name ${name} --ranks 1 --timeout ${timeout}
    --unrecorded --record-dir ${PROJECT_BINARY_DIR}/test_records -- ${ARGN})
  math(EXPR backstop "2 * ${timeout} + 60")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${backstop} LABELS host SKIP_RETURN_CODE 77
    ENVIRONMENT "${CKV_TEST_ENVIRONMENT}")
  set_property(GLOBAL APPEND PROPERTY CKV_TEST_NAMES ${name})
endfunction()
