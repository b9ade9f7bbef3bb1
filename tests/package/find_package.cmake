# Builds and runs a consumer that finds the installed package in PREFIX.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${PREFIX})
file(REMOVE_RECURSE ${WORK})

run(${configure} -B ${WORK}/core)
run(${CMAKE_COMMAND} --build ${WORK}/core)
file(STRINGS ${WORK}/core/CMakeCache.txt foreign REGEX "^(HDF5|Eigen3|DSALT_RANDOM123|CMAKE_CUDA)")
if(foreign)
  message(FATAL_ERROR "find_package(dsalt) went looking for ${foreign}")
endif()
expect_example(${WORK}/core/consumer)
expect_no_hdf5_or_cuda(${WORK}/core/consumer)

if(SHARED)
  set(module ${PREFIX}/${LIBDIR}/libdsalt_cuda.so)  # beside libdsalt
else()
  set(module ${WORK}/core/libdsalt_cuda.so)  # beside the program
endif()
if(EXISTS ${module})
  file(RENAME ${module} ${module}.kept)
endif()
file(COPY_FILE ${TEST_MODULE} ${module})
expect_module_found(${WORK}/core/consumer ${module})
expect_failure("^(not built: |module libdsalt_cuda.so not found in )[^\n]*\n$" ${WORK}/core/consumer cuda)
if(EXISTS ${module}.kept)
  file(RENAME ${module}.kept ${module})
endif()

expect_failure("unknown component \"kernels\"; there are: core, verification"
               ${configure} -B ${WORK}/unknown -DCONSUMER_COMPONENTS=kernels)
if(VERIFICATION)
  run(${configure} -B ${WORK}/verification -DCONSUMER_COMPONENTS=verification)
  run(${CMAKE_COMMAND} --build ${WORK}/verification)
  expect(".*equivalence.*" ${WORK}/verification/verification_consumer)
  expect_no_hdf5_or_cuda(${WORK}/verification/consumer)
else()
  expect_failure("component \"verification\" is not installed"
                 ${configure} -B ${WORK}/verification -DCONSUMER_COMPONENTS=verification)
endif()

# An optional component that cannot be had leaves the rest usable. (Language C is what a static libdsalt needs for HDF5.)
file(WRITE ${WORK}/optional/CMakeLists.txt
     "cmake_minimum_required(VERSION 3.25)\nproject(optional CXX)\n"
     "find_package(dsalt REQUIRED OPTIONAL_COMPONENTS verification kernels)\n"
     "if(NOT TARGET dsalt::dsalt OR NOT dsalt_FOUND OR dsalt_kernels_FOUND)\n  message(FATAL_ERROR \"core is lost\")\nendif()\n"
     "if((TARGET dsalt::verification AND NOT dsalt_verification_FOUND)\n"
     "   OR NOT (dsalt_verification_FOUND STREQUAL \"\${EXPECTED}\"))\n"
     "  message(FATAL_ERROR \"verification: \${dsalt_verification_FOUND}\")\nendif()\n")
set(expected FALSE)
if(VERIFICATION AND SHARED)
  set(expected TRUE)
endif()
run(${CMAKE_COMMAND} -S ${WORK}/optional -B ${WORK}/optional/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${PREFIX} -DEXPECTED=${expected})

# Another minor version is another interface.
file(WRITE ${WORK}/version/CMakeLists.txt
     "cmake_minimum_required(VERSION 3.25)\nproject(version CXX)\nfind_package(dsalt \${WANTED} REQUIRED)\n")
set(version_check ${CMAKE_COMMAND} -S ${WORK}/version -B ${WORK}/version/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${PREFIX})
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" this_minor ${VERSION})
math(EXPR next "${CMAKE_MATCH_2} + 1")
run(${version_check} -DWANTED=${this_minor})
run(${version_check} -DWANTED=${VERSION})
expect_failure("not accepted:[^:]*dsaltConfig.cmake, version: ${VERSION}" ${version_check} -DWANTED=${CMAKE_MATCH_1}.${next})
