# Debian 12 packages, listed with reasons in packages.txt; `make deps` installs them. Nothing is
# downloaded by the build. What is found here is found again in zeroppConfig.cmake.in.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Boost REQUIRED COMPONENTS context)
find_package(dnnl REQUIRED)
find_package(HWY REQUIRED)
# Of the program and the tests alone.
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
