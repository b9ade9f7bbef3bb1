# Builds and runs the consumer with a compiler and pkg-config alone.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
expect("${VERSION}" ${PKG_CONFIG} --modversion dsalt)
file(MAKE_DIRECTORY ${WORK})

function(build program source package)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs ${package} OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${CXX} -std=c++20 -O2 ${CMAKE_CURRENT_LIST_DIR}/consumer/${source} -o ${program} ${flags}
      -Wl,-rpath,${PREFIX}/${LIBDIR})  # README.md, "Using it"
endfunction()

build(${WORK}/consumer main.cpp dsalt)
expect_example(${WORK}/consumer)
expect_no_hdf5_or_cuda(${WORK}/consumer)
if(VERIFICATION)
  build(${WORK}/verification_consumer verification.cpp dsalt-verification)
  expect(".*equivalence.*" ${WORK}/verification_consumer)
endif()
