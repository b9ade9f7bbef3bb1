#include <csignal>

#include "commands.hpp"
#include "guarded.hpp"

int main(int argc, char** argv) {
  using namespace dsalt::tools;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error code of write(), and a run still writes its reports
  return run_guarded([&] { return run_command_line(argc, argv); });
}
