// On a machine with a GPU: what the CUDA module of this build says about it. Ends with 77, "skipped", where there is no
// driver or no device; there, refused_modules_test checks the reasons.
#include <cstdio>
#include <string>

#include "dsalt/errors.hpp"
#include "dsalt/registry.hpp"

namespace {

int failures = 0;

void check(bool ok, const char* what, const std::string& got) {
  std::printf("%s: %s: \"%s\"\n", ok ? "passed" : "FAILED", what, got.c_str());
  failures += !ok;
}

std::string reason(const std::string& name, const dsalt::BackendOptions& options) {
  try {
    return "made " + std::string(dsalt::make_backend(name, options)->name());
  } catch (const dsalt::BackendUnavailable& error) {
    return error.what();
  }
}

}  // namespace

int main(int argc, char** argv) {
  dsalt::BackendOptions options;
  if (argc > 1) options.module_path = argv[1];
  const dsalt::BackendInfo info = dsalt::list_backends(options).back();
  if (info.detail.rfind("no driver", 0) == 0 || info.detail == "no CUDA device") {
    std::printf("skipped: no device (%s)\n", info.detail.c_str());
    return 77;
  }

  check(info.available && info.detail.rfind("device 0 (", 0) == 0, "the device is found, checked and offered",
        info.detail);
  const std::string made = reason("cuda", options);
  check(made == "made cuda:0", "make_backend(\"cuda\") takes the first device", made);
  const std::string description = dsalt::make_backend("cuda", options)->description();
  check(description.rfind(info.detail, 0) == 0 && description.find("compute capability") != std::string::npos,
        "the description names the device and its capability", description);
  const std::string far = reason("cuda:99", options);
  check(far.rfind("device index 99 is out of range: this machine has ", 0) == 0, "an index past the last device", far);
  const std::string chosen(dsalt::make_backend("auto", options)->name());
  check(chosen == "cuda:0", "\"auto\" takes cuda", chosen);
  return failures != 0;
}
