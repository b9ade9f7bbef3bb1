# Writes OUTPUT, a header with DSALT_COMMIT: the commit of SOURCE, with "+" when tracked files differ from it, or "" outside
# of git. Run at every build (cmake -P); the file is touched only when its content changes.
find_program(git git)
set(commit "")
if(git)
  execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --show-prefix --short=12 HEAD
                  RESULT_VARIABLE failed OUTPUT_VARIABLE lines ERROR_QUIET)
  string(REGEX MATCH "^\n([0-9a-f]+)\n$" found "${lines}")  # a first line: the source lies inside another repository
  if(NOT failed AND found)
    set(commit ${CMAKE_MATCH_1})
    execute_process(COMMAND ${git} -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE changed ERROR_QUIET)
    if(changed)
      string(APPEND commit "+")
    endif()
  endif()
endif()
set(content "#pragma once\n#define DSALT_COMMIT \"${commit}\"\n")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL content)
  file(WRITE ${OUTPUT} "${content}")
endif()
