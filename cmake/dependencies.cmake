# Debian 12 packages; `make deps` installs them. Nothing is downloaded by the build.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)             # libfmt-dev
find_package(OpenSSL REQUIRED)         # libssl-dev
find_package(Boost REQUIRED COMPONENTS context)  # libboost-context-dev
find_package(nlohmann_json REQUIRED)   # nlohmann-json3-dev
find_package(CLI11 REQUIRED)           # libcli11-dev
find_package(dnnl REQUIRED)            # libdnnl-dev
find_package(HWY QUIET)                # libhwy-dev
if(NOT TARGET hwy::hwy)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
  add_library(hwy::hwy ALIAS PkgConfig::HWY)
endif()
