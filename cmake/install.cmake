# `cmake --install build --prefix P`: the program, and the layers below it as a CMake package:
#   find_package(zeropp REQUIRED)
#   target_link_libraries(mine PRIVATE zeropp::quant)   # or zeropp::hierarchy, zeropp::zero
#   target_link_libraries(my_plugin PRIVATE zeropp::plugin)  # a MODULE for --plugin
# tests/checks/consumer is such a project.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(zeropp_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zeropp)

install(TARGETS zeropp RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS zeropp_quant zeropp_plugin zeropp_hierarchy zeropp_zero EXPORT zeroppTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT devel)

# Headers keep their path from the root of the repository, below include/zeropp. What a backend
# or a layer keeps to itself stays at home.
install(DIRECTORY quant hierarchy zero
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/zeropp COMPONENT devel
        FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh"
        PATTERN "*-inl.h" EXCLUDE
        PATTERN "quant/contract/checks.h" EXCLUDE
        PATTERN "zero/ops/cpu" EXCLUDE
        PATTERN "zero/ops/cuda" EXCLUDE)

install(EXPORT zeroppTargets NAMESPACE zeropp:: DESTINATION ${zeropp_cmake_dir} COMPONENT devel)
configure_package_config_file(cmake/zeroppConfig.cmake.in
  ${PROJECT_BINARY_DIR}/zeroppConfig.cmake INSTALL_DESTINATION ${zeropp_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/zeroppConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/zeroppConfig.cmake
              ${PROJECT_BINARY_DIR}/zeroppConfigVersion.cmake
        DESTINATION ${zeropp_cmake_dir} COMPONENT devel)
