// What the exit status of `dsalt` means (docs/command.md).
#pragma once

namespace dsalt::tools {

enum ExitCode : int {
  success = 0,
  check_failed = 1,         // a check failed, a case could not be evaluated, or no case was executed at all
  bad_usage = 2,            // unknown option or subcommand, or an argument that means nothing
  backend_unavailable = 3,  // the backend asked for cannot run here
  file_error = 4,           // a file could not be read or written, or is not what it should be
  device_error = 5,         // a device failed or memory ran out while computing
};

}  // namespace dsalt::tools
