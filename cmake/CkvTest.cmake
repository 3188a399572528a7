# SPDX-License-Identifier: Apache-2.0
# ckv_add_test(SUITE SOURCES FILE... CASES NAME... [RANKS N...] [LIBS TARGET...] [TIMEOUT SECONDS] [LABELS NAME...]
#              [ARGS ARG...])
#
# One program test_SUITE; one CTest test SUITE.CASE per case, or SUITE.CASE-npN for each N of RANKS. TIMEOUT (60) is the
# deadline of one case. Every name goes to test_cases.txt in the build folder, where `ckv lists check` reads it.
define_property(GLOBAL PROPERTY CKV_TEST_CASES BRIEF_DOCS "Every CTest name" FULL_DOCS "Every CTest name")

# Add a name to test_cases.txt; for tests that do not come from ckv_add_test.
function(ckv_register_case name)
  set_property(GLOBAL APPEND PROPERTY CKV_TEST_CASES ${name})
endfunction()

function(ckv_write_test_cases)
  get_property(cases GLOBAL PROPERTY CKV_TEST_CASES)
  list(SORT cases)
  list(JOIN cases "\n" text)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_cases.txt CONTENT "${text}\n" @ONLY)
endfunction()
cmake_language(DEFER DIRECTORY ${PROJECT_SOURCE_DIR} CALL ckv_write_test_cases)

function(ckv_add_case name program case ranks timeout labels arguments)
  add_test(NAME ${name} COMMAND ${program} ${case} ${arguments})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} PROCESSORS ${ranks} LABELS "${labels}" SKIP_RETURN_CODE 77)
  ckv_register_case(${name})
endfunction()

function(ckv_add_test suite)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT" "SOURCES;CASES;RANKS;LIBS;LABELS;ARGS")
  if(test_UNPARSED_ARGUMENTS OR NOT test_SOURCES OR NOT test_CASES)
    message(FATAL_ERROR "ckv_add_test(${suite}): needs SOURCES and CASES; does not know '${test_UNPARSED_ARGUMENTS}'")
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 60)
  endif()
  set(program test_${suite})
  add_executable(${program} ${test_SOURCES})
  target_link_libraries(${program} PRIVATE ckv_test_support ${test_LIBS})

  foreach(case IN LISTS test_CASES)
    ckv_add_case(${suite}.${case} ${program} ${case} 1 ${test_TIMEOUT} "host;${test_LABELS}" "${test_ARGS}")
  endforeach()
endfunction()
