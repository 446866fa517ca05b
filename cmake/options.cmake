# Flags live on one INTERFACE target; every target of this project links it privately.
add_library(zeropp_options INTERFACE)
target_compile_features(zeropp_options INTERFACE cxx_std_20)
target_compile_options(zeropp_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-psabi
  -Wno-missing-field-initializers  # {.workers = 1} leaves the rest at its default on purpose.
  -ffp-contract=off)  # One rounding per written operation, on every instruction set.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of g++ 12's optimiser on std::string (GCC bugs 105651, 105562, 105593).
  target_compile_options(zeropp_options INTERFACE
    -Wno-restrict -Wno-stringop-overread -Wno-maybe-uninitialized)
endif()
if(ZEROPP_WERROR)
  target_compile_options(zeropp_options INTERFACE -Werror)
endif()
if(ZEROPP_SANITIZE)
  if(ZEROPP_SANITIZE MATCHES "thread" AND ZEROPP_SANITIZE MATCHES "address")
    message(FATAL_ERROR "ZEROPP_SANITIZE: address and thread exclude each other")
  endif()
  add_compile_options(-fsanitize=${ZEROPP_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ZEROPP_SANITIZE})
endif()
if(ZEROPP_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "ZEROPP_FUZZ: libFuzzer comes with clang, this is ${CMAKE_CXX_COMPILER}")
  endif()
  set(fuzz_sanitizers -fsanitize=address,undefined,float-cast-overflow)
  add_compile_options(${fuzz_sanitizers} -fsanitize=fuzzer-no-link -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(${fuzz_sanitizers})
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g1 -DNDEBUG")
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

if(ZEROPP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
endif()

# zeropp_library(<layer> SOURCES ... LINKS ... PRIVATE_LINKS ...): one static library a layer.
function(zeropp_library layer)
  cmake_parse_arguments(ARG "" "" "HEADERS;SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(zeropp_${layer} STATIC ${ARG_SOURCES})
  add_library(zeropp::${layer} ALIAS zeropp_${layer})
  set_target_properties(zeropp_${layer} PROPERTIES EXPORT_NAME ${layer})
  target_include_directories(zeropp_${layer} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/zeropp>)
  target_compile_features(zeropp_${layer} PUBLIC cxx_std_20)
  target_link_libraries(zeropp_${layer} PUBLIC ${ARG_LINKS}
    PRIVATE $<BUILD_INTERFACE:zeropp_options> ${ARG_PRIVATE_LINKS})
endfunction()
