# Installs this build, moves the tree elsewhere, and checks what is in it and what the parts link.
include(${CMAKE_CURRENT_LIST_DIR}/support.cmake)

file(REMOVE_RECURSE ${WORK} ${PREFIX})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${PREFIX})

foreach(file
    ${INCLUDEDIR}/dsalt/dsalt.hpp ${INCLUDEDIR}/dsalt/version.hpp ${INCLUDEDIR}/dsalt/module.hpp
    ${LIBDIR}/cmake/dsalt/dsaltConfig.cmake ${LIBDIR}/cmake/dsalt/dsaltConfigVersion.cmake
    ${LIBDIR}/pkgconfig/dsalt.pc)
  if(NOT EXISTS ${PREFIX}/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# Public headers need nothing but themselves.
file(GLOB_RECURSE headers ${PREFIX}/${INCLUDEDIR}/*.hpp)
foreach(header IN LISTS headers)
  file(STRINGS ${header} foreign REGEX "^ *# *include *[<\"](Eigen|Random123|hdf5|H5|cuda|omp|internal/)")
  if(foreign)
    message(FATAL_ERROR "${header} includes ${foreign}")
  endif()
endforeach()

# No path of the build, the source or the first prefix remains.
file(GLOB_RECURSE texts ${PREFIX}/${LIBDIR}/*.cmake ${PREFIX}/${LIBDIR}/*.pc)
foreach(text IN LISTS texts)
  file(READ ${text} content)
  foreach(path ${WORK}/first ${BUILD} ${SOURCE})
    string(FIND "${content}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${text} mentions ${path}")
    endif()
  endforeach()
endforeach()

file(GLOB libraries ${PREFIX}/${LIBDIR}/*.so)
foreach(library IN LISTS libraries)
  execute_process(COMMAND ${READELF} -d ${library} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  string(FIND "${dynamic}" "${BUILD}" position)
  if(NOT dynamic MATCHES "R(UN)?PATH[^\n]*\\[.ORIGIN[]:]" OR NOT position EQUAL -1)
    message(FATAL_ERROR "the run path of ${library} does not begin with $ORIGIN, or names the build:\n${dynamic}")
  endif()
endforeach()
if(SHARED)
  expect_no_hdf5_or_cuda(${PREFIX}/${LIBDIR}/libdsalt.so)
endif()

if(COMMAND_NAME)
  run(${PREFIX}/${BINDIR}/${COMMAND_NAME} --version)
  run(${PREFIX}/${BINDIR}/${COMMAND_NAME} --help)
  run(${PREFIX}/${BINDIR}/${COMMAND_NAME} backends)
endif()
