// One sentence on standard error and an exit code for everything that can go wrong.
#include <csignal>
#include <new>

#include "commands.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"

int main(int argc, char** argv) {
  using namespace dsalt::tools;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error code of write(), and a run still writes its reports
  try {
    return run_command_line(argc, argv);
  } catch (const dsalt::BackendUnavailable& error) {
    note(error.what());
    return backend_unavailable;
  } catch (const dsalt::IoError& error) {
    note(error.what());
    return file_error;
  } catch (const dsalt::DeviceError& error) {
    note(error.what());
    return device_error;
  } catch (const dsalt::InvalidArgument& error) {
    note(error.what());
    return bad_usage;
  } catch (const dsalt::Unsupported& error) {
    note(error.what());
    return check_failed;
  } catch (const std::bad_alloc&) {
    note("out of memory");
    return device_error;
  } catch (const std::exception& error) {
    note(std::string("internal error: ") + error.what());
    return check_failed;
  }
}
