# Installation: libraries, headers, the CUDA module, the dsalt command, the CMake package and the pkg-config files.
# A shared libdsalt may be moved as a whole: its files find each other from where they are (as long as the install folders
# are relative). A static libdsalt also remembers the library folder that was configured (DSALT_INSTALL_LIBDIR), where a
# program that links it looks for the CUDA module last.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dsalt)
file(RELATIVE_PATH lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

# Two export sets, so that a consumer of dsalt::dsalt alone never meets HDF5.
install(TARGETS dsalt EXPORT dsaltTargets)
install(EXPORT dsaltTargets NAMESPACE dsalt:: DESTINATION ${package_dir})
set_target_properties(dsalt PROPERTIES INSTALL_RPATH "$ORIGIN")
install(DIRECTORY core/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(FILES ${PROJECT_BINARY_DIR}/include/dsalt/version.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/dsalt)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

if(TARGET dsalt_cuda)
  install(TARGETS dsalt_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set_target_properties(dsalt_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
endif()

if(TARGET dsalt_verification)
  install(TARGETS dsalt_verification EXPORT dsaltVerificationTargets)
  install(EXPORT dsaltVerificationTargets NAMESPACE dsalt:: DESTINATION ${package_dir})
  set_target_properties(dsalt_verification PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
  install(DIRECTORY verification/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
endif()

foreach(program dsalt_command dsalt_gpu_bench)
  if(TARGET ${program})
    install(TARGETS ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}" INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()

# find_package(dsalt)
configure_package_config_file(cmake/dsaltConfig.cmake.in ${PROJECT_BINARY_DIR}/dsaltConfig.cmake
                              INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dsaltConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dsaltConfig.cmake ${PROJECT_BINARY_DIR}/dsaltConfigVersion.cmake
        DESTINATION ${package_dir})

# pkg-config: a static library needs its private libraries on every link line, a shared one on none.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(dir LIBDIR INCLUDEDIR)
  string(TOLOWER pc_${dir} pc_variable)
  if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
    set(${pc_variable} ${CMAKE_INSTALL_${dir}})
  else()
    set(${pc_variable} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  endif()
endforeach()
set(dsalt_private "")
set(verification_private "")
if(NOT BUILD_SHARED_LIBS)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(dsalt_private " ${OpenMP_CXX_FLAGS} -pthread -ldl")
  if(TARGET dsalt_verification)
    find_package(HDF5 REQUIRED COMPONENTS C)
    get_target_property(hdf5_library hdf5::hdf5 IMPORTED_LOCATION)
    set(verification_private " ${hdf5_library}")
  endif()
endif()
foreach(pc dsalt dsalt-verification)
  if(pc STREQUAL dsalt OR TARGET dsalt_verification)
    configure_file(cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${pc_dir})
  endif()
endforeach()
