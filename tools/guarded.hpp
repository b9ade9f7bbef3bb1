// One sentence on standard error and an exit code for everything that can go wrong.
#pragma once

#include <functional>

namespace dsalt::tools {

/// The exit code of `command`, or of the exception that it ended with.
int run_guarded(const std::function<int()>& command);

}  // namespace dsalt::tools
