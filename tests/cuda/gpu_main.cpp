// The main of tests that need a GPU: ends with 77, "skipped", where there is no driver or no device, and fails where
// the module cannot be used for any other reason.
#define BOOST_TEST_NO_MAIN
#define BOOST_TEST_MODULE dsalt_gpu
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <string>

#include "dsalt/registry.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  const dsalt::BackendInfo info = dsalt::list_backends().back();
  if (!info.available) {
    const bool no_device = info.detail.rfind("no driver", 0) == 0 || info.detail == "no CUDA device";
    std::printf("%s: %s\n", no_device ? "skipped: no device" : "FAILED: the CUDA module cannot be used",
                info.detail.c_str());
    return no_device ? skipped : 1;
  }
  std::printf("%s: %s\n", info.name.c_str(), info.detail.c_str());
  return boost::unit_test::unit_test_main(init_unit_test, argc, argv);
}
