# cmake -DNVCC=... -DLAUNCHER=... -DINCLUDES=... -DOBJECT=... -P serialised_wgmma.cmake
# The launcher of the CUDA module's compiler refuses the planted file, names the reason and leaves no object; it lets the
# sound one through.
get_filename_component(folder ${CMAKE_CURRENT_LIST_FILE} DIRECTORY)
function(compile define)
  file(REMOVE ${OBJECT})
  execute_process(
    COMMAND ${LAUNCHER} ${NVCC} -std=c++20 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -O3 -D${define}
            ${INCLUDES} -c ${folder}/serialised_wgmma.cu -o ${OBJECT}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(status ${status} PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

compile(PLANTED)
if(status EQUAL 0 OR NOT output MATCHES "refused: serialised wgmma instructions")
  message(FATAL_ERROR "the planted file was not refused (status ${status}):\n${output}")
endif()
if(EXISTS ${OBJECT})
  message(FATAL_ERROR "an object of the refused file was left behind")
endif()
compile(SOUND)
if(NOT status EQUAL 0 OR NOT EXISTS ${OBJECT})
  message(FATAL_ERROR "the sound file was refused (status ${status}):\n${output}")
endif()
