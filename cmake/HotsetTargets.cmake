# The rules that every hotset target is made by.
include(GoogleTest)

set(HOTSET_SHARED_DIR "${PROJECT_SOURCE_DIR}/../shared" CACHE PATH
    "Golden data and traces; tests that need it skip with a message where it is absent")

add_library(hotset_options INTERFACE)
target_compile_options(hotset_options INTERFACE -Wall -Wextra -Wshadow -Wconversion
                       # As GCC has it: what is counted in int indexes what is sized in size_t.
                       $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>
                       $<$<BOOL:${HOTSET_WERROR}>:-Werror>)
target_include_directories(hotset_options INTERFACE "${PROJECT_SOURCE_DIR}")
if(HOTSET_SANITIZE)
  # What sanitizers put between makes GCC see uses that are none.
  target_compile_options(hotset_options INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(hotset_options INTERFACE -fsanitize=${HOTSET_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(hotset_options INTERFACE -fsanitize=${HOTSET_SANITIZE})
endif()
if(HOTSET_FUZZ)
  target_compile_options(hotset_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Environment of every test, by sanitizer. Tests run side by side, and kernel threads that spin while
# they wait take the cores from those that they wait for: the CLI tests took twenty times as long.
set(HOTSET_TEST_ENV "HOTSET_ASSETS_DIR=${PROJECT_SOURCE_DIR}/assets"
    "OMP_WAIT_POLICY=passive"
    "HOTSET_SHARED_DIR=${HOTSET_SHARED_DIR}"
    "ASAN_OPTIONS=detect_leaks=1:detect_odr_violation=0"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp:halt_on_error=1")

# The programs that run under tsan: what `scripts/test tsan` builds.
add_custom_target(concurrent_tests)

# hotset_in_groups(TARGET SIZE [ALONE...]): with HOTSET_UNITY that many sources of the target are one unit
# of compilation, for most of the time of one goes into headers. So names within anonymous namespaces
# are unique within a target, but for those of the sources that stand ALONE.
function(hotset_in_groups target size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${HOTSET_UNITY} UNITY_BUILD_BATCH_SIZE ${size})
  if(HOTSET_UNITY)
    # Meant for types of headers: in a group every source looks like one.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
  if(ARGN)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# hotset_library(NAME SOURCES ... DEPS ... [ALONE ...]): one library per folder, hotset::NAME.
function(hotset_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS;ALONE" ${ARGN})
  add_library(hotset_${name} STATIC ${ARG_SOURCES})
  add_library(hotset::${name} ALIAS hotset_${name})
  target_link_libraries(hotset_${name} PUBLIC ${ARG_DEPS} PRIVATE hotset_options ${ARG_PRIVATE_DEPS})
  hotset_in_groups(hotset_${name} 8 ${ARG_ALONE})
endfunction()

# hotset_test(NAME SOURCES ... DEPS ... [ALONE ...] [LABELS slow concurrent ...] [TIMEOUT seconds]
# [ENV NAME=value ...]): a GoogleTest program, each of its tests a ctest entry. One per folder, but for
# tests of other labels and those that replace operator new. Label slow: not under asan. Label
# concurrent: under tsan.
function(hotset_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;ALONE;LABELS;ENV" ${ARGN})
  if(HOTSET_FUZZ)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE hotset_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  # Halves the time of their compilation; what they test is compiled as it is shipped.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  hotset_in_groups(${name} 4 ${ARG_ALONE})
  if("concurrent" IN_LIST ARG_LABELS)
    add_dependencies(concurrent_tests ${name})
  endif()
  # gtest_discover_tests() takes its properties apart at every semicolon and drops empty ones, so
  # lists are escaped, and there is always a label.
  list(JOIN HOTSET_TEST_ENV "\\;" environment)
  foreach(variable IN LISTS ARG_ENV)
    string(APPEND environment "\\;${variable}")
  endforeach()
  list(APPEND ARG_LABELS unit)
  list(JOIN ARG_LABELS "\\;" labels)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${labels}"
                       ENVIRONMENT "${environment}")
endfunction()

# hotset_fuzzer(NAME SOURCES ... DEPS ...): under HOTSET_FUZZ a libFuzzer program; otherwise a test
# NAME.corpus that runs the same entry point over fuzz/corpus/NAME and over mutations of it.
function(hotset_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  set(corpus "${PROJECT_SOURCE_DIR}/fuzz/corpus/${name}")
  if(HOTSET_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${ARG_SOURCES} "${PROJECT_SOURCE_DIR}/fuzz/corpus_main.cc")
    add_test(NAME ${name}.corpus COMMAND ${name} "${corpus}")
    set_tests_properties(${name}.corpus PROPERTIES TIMEOUT 300 ENVIRONMENT "${HOTSET_TEST_ENV}")
  endif()
  target_link_libraries(${name} PRIVATE hotset_options ${ARG_DEPS})
endfunction()

# hotset_bench(NAME SOURCES ... DEPS ...): a google-benchmark program; never run by ctest.
function(hotset_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(HOTSET_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE hotset_options ${ARG_DEPS} benchmark::benchmark)
endfunction()
