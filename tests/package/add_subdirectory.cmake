# Builds and runs a consumer that has libdsalt's source as a subdirectory; then installs the static library from it.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

# Unoptimised: this is about what is built and installed, and consumers debug as well.
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subdirectory -B ${WORK}/build -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_COMPILER_LAUNCHER=${CXX_LAUNCHER}
    -DDSALT_SOURCE=${SOURCE})
file(REMOVE_RECURSE ${WORK} ${PREFIX})

run(${configure})
run(${CMAKE_COMMAND} --build ${WORK}/build --parallel 2)
# As part of another project: the library alone, and none of its options set for that project.
file(STRINGS ${WORK}/build/CMakeCache.txt foreign REGEX "^(HDF5|Boost|CLI11|CMAKE_CUDA|BUILD_SHARED_LIBS)")
if(foreign)
  message(FATAL_ERROR "add_subdirectory of libdsalt brought ${foreign}")
endif()
foreach(option DSALT_CUDA DSALT_VERIFICATION DSALT_TESTS DSALT_INSTALL)  # DSALT_TOOLS follows DSALT_VERIFICATION
  file(STRINGS ${WORK}/build/CMakeCache.txt value REGEX "^${option}:[A-Z]+=OFF$")
  if(NOT value)
    message(FATAL_ERROR "${option} is not OFF in a subdirectory build")
  endif()
endforeach()
expect_example(${WORK}/build/consumer)
expect_no_hdf5_or_cuda(${WORK}/build/consumer)
unset(ENV{DSALT_MODULE_PATH})
expect_failure("^not built: libdsalt was configured with DSALT_CUDA=OFF\n$" ${WORK}/build/consumer cuda)

run(${configure} -DDSALT_INSTALL=ON -DDSALT_VERIFICATION=${VERIFICATION})
run(${CMAKE_COMMAND} --build ${WORK}/build --parallel 2)
run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${PREFIX})
if(NOT EXISTS ${PREFIX}/${LIBDIR}/libdsalt.a)
  message(FATAL_ERROR "no static libdsalt was installed")
endif()
