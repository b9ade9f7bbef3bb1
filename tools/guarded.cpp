#include "guarded.hpp"

#include <new>

#include "console.hpp"
#include "dsalt/errors.hpp"
#include "exit_code.hpp"

namespace dsalt::tools {

int run_guarded(const std::function<int()>& command) {
  try {
    return command();
  } catch (const BackendUnavailable& error) {
    note(error.what());
    return backend_unavailable;
  } catch (const IoError& error) {
    note(error.what());
    return file_error;
  } catch (const DeviceError& error) {
    note(error.what());
    return device_error;
  } catch (const InvalidArgument& error) {
    note(error.what());
    return bad_usage;
  } catch (const Unsupported& error) {
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

}  // namespace dsalt::tools
