# Debian 12 packages, listed with reasons in packages.txt; `make deps` installs them. Nothing is
# downloaded by the build. What is found here is found again in zeroppConfig.cmake.in.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost REQUIRED COMPONENTS context)
find_package(dnnl REQUIRED)
find_package(HWY REQUIRED)
# OpenMPI for ranks as processes. Under TSan AUTO leaves it out: it is not instrumented.
set(ZEROPP_HAS_MPI OFF)
if(ZEROPP_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS CXX)
elseif(ZEROPP_MPI STREQUAL "AUTO" AND NOT ZEROPP_SANITIZE MATCHES "thread")
  find_package(MPI QUIET COMPONENTS CXX)
endif()
if(NOT ZEROPP_MPI STREQUAL "OFF" AND MPI_CXX_FOUND)
  set(ZEROPP_HAS_MPI ON)
endif()
# Of the program and the tests alone.
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
