// A module that is accepted: found where it is looked for, bound to its device, running operations, and leaving the
// process as it was.
#include <dlfcn.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cfloat>
#include <cmath>
#include <limits>
#include <thread>

#include "dsalt/errors.hpp"
#include "dsalt/network.hpp"
#include "support.hpp"

using namespace module_test;
namespace fs = std::filesystem;

namespace {

volatile double smallest_normal = DBL_MIN;  // volatile: halved at run time, in the mode of this thread

bool keeps_subnormals() { return smallest_normal / 2 != 0; }

bool throws_what(const std::exception& error, const std::string& expected) {
  BOOST_TEST(error.what() == expected);
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(working_module)

BOOST_AUTO_TEST_CASE(is_listed_and_made) {
  const dsalt::BackendOptions options = with_module(test_module("working"));
  const dsalt::BackendInfo info = cuda_info(options);
  BOOST_TEST(info.available);
  BOOST_TEST(info.detail == "test device 0");
  BOOST_TEST(dsalt::make_backend("cuda", options)->name() == "cuda:0");
  BOOST_TEST(dsalt::make_backend("cuda:0", options)->name() == "cuda:0");
  BOOST_TEST(dsalt::make_backend("cuda:1", options)->name() == "cuda:1");
  BOOST_TEST(dsalt::make_backend("auto", options)->name() == "cuda:0");
  BOOST_TEST(dsalt::make_backend("cpu", options)->name() == "cpu");
}

BOOST_AUTO_TEST_CASE(device_index_out_of_range) {
  const dsalt::BackendOptions options = with_module(test_module("working"));
  BOOST_CHECK_EXCEPTION(dsalt::make_backend("cuda:3", options), dsalt::BackendUnavailable,
                        [](const dsalt::BackendUnavailable& error) {
                          return throws_what(error, "device index 3 is out of range: this machine has 2 CUDA devices");
                        });
}

BOOST_AUTO_TEST_CASE(runs_an_operation) {
  const auto backend = dsalt::make_backend("cuda", with_module(test_module("working")));
  BOOST_TEST(backend->description() == "test module, 0 calls");
  const float gate[] = {0, 1}, up[] = {5, 2};
  float y[2] = {-1, -1};
  dsalt::swiglu_forward(*backend, {dsalt::TensorView::of(gate, {2}), dsalt::TensorView::of(up, {2})},
                        dsalt::TensorView::of(y, dsalt::DType::f32, {2}));
  BOOST_TEST(backend->description() == "test module, 1 calls");
  BOOST_TEST(y[0] == 0);
  BOOST_TEST(std::fabs(y[1] - 2 / (1 + std::exp(-1.0))) <= 1e-6);
}

BOOST_AUTO_TEST_CASE(its_exceptions_arrive) {
  dsalt::BackendOptions options = with_module(test_module("working"));
  int stream = 0;
  options.stream = &stream;
  BOOST_CHECK_EXCEPTION(dsalt::make_backend("cuda", options), dsalt::DeviceError, [](const dsalt::DeviceError& error) {
    return throws_what(error, "test device: streams fail here");
  });
}

BOOST_AUTO_TEST_CASE(is_found_by_file_folder_link_and_environment) {
  const TemporaryFolder folder;
  fs::create_symlink(test_module("working"), folder.path() / "libdsalt_cuda.so");
  BOOST_TEST(cuda_info(with_module(folder.path())).available);
  BOOST_TEST(cuda_info(with_module(folder.path() / "libdsalt_cuda.so")).available);
  BOOST_TEST(cuda_info(with_module(fs::relative(folder.path() / "libdsalt_cuda.so"))).available);
  for (const fs::path& path : {folder.path(), folder.path() / "libdsalt_cuda.so"}) {
    const Environment variable("DSALT_MODULE_PATH", path.string());
    BOOST_TEST(cuda_info({}).available);
    // The option wins over the environment.
    BOOST_TEST(!cuda_info(with_module(test_module("wrong_abi"))).available);
  }
}

BOOST_AUTO_TEST_CASE(a_file_name_without_folder_is_taken_from_the_current_folder) {
  const fs::path before = fs::current_path();
  fs::current_path(test_module("working").parent_path());
  const bool available = cuda_info(with_module("working.so")).available;
  fs::current_path(before);
  BOOST_TEST(available);
}

BOOST_AUTO_TEST_CASE(default_backend_follows_the_environment) {
  const Environment module("DSALT_MODULE_PATH", test_module("working").string());
  {
    const Environment variable("DSALT_BACKEND", "cuda:1");
    BOOST_TEST(dsalt::make_backend()->name() == "cuda:1");
    BOOST_TEST(dsalt::make_backend("reference")->name() == "reference");
  }
  for (const char* automatic : {"", "auto"}) {
    const Environment variable("DSALT_BACKEND", automatic);
    BOOST_TEST(dsalt::make_backend()->name() == "cuda:0");
  }
  {
    const Environment variable("DSALT_BACKEND", "reference");
    BOOST_TEST(dsalt::make_backend()->name() == "reference");
  }
  const Environment variable("DSALT_BACKEND", "cuda");
  const Environment broken("DSALT_MODULE_PATH", test_module("wrong_abi").string());
  BOOST_CHECK_THROW(dsalt::make_backend(), dsalt::BackendUnavailable);
}

BOOST_AUTO_TEST_CASE(a_cpu_backend_that_cannot_be_made_is_listed_with_its_error) {
  const Environment isa("DSALT_CPU_ISA", "quantum");
  const Environment no_default("DSALT_BACKEND", std::nullopt);
  const dsalt::BackendOptions broken = with_module(test_module("wrong_abi"));
  const std::vector<dsalt::BackendInfo> list = dsalt::list_backends(broken);
  BOOST_REQUIRE_EQUAL(list.size(), 3U);
  BOOST_TEST(list[0].available);
  BOOST_TEST(list[1].name == "cpu");
  BOOST_TEST(!list[1].available);
  BOOST_TEST(list[1].detail.find("DSALT_CPU_ISA: got \"quantum\"") == 0);
  // "auto" says the same; it does not take the reference instead.
  for (const char* name : {"auto", "cpu", ""})
    BOOST_CHECK_EXCEPTION(dsalt::make_backend(name, broken), dsalt::InvalidArgument,
                          [&](const dsalt::InvalidArgument& error) { return throws_what(error, list[1].detail); });
  BOOST_TEST(dsalt::make_backend("reference", broken)->name() == "reference");
}

BOOST_AUTO_TEST_CASE(unknown_names) {
  const std::string known = "need one of auto, reference, cpu, cuda[:N]";
  for (const char* name : {"gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:-0", "cuda:1x", "cuda: 1", "cuda1",
                           "cuda:99999999999", "cpu:0", "reference:1", " cpu"})
    BOOST_CHECK_EXCEPTION(dsalt::make_backend(name), dsalt::InvalidArgument, [&](const dsalt::InvalidArgument& error) {
      return throws_what(error, "backend: got \"" + std::string(name) + "\", " + known);
    });
  const Environment variable("DSALT_BACKEND", "tpu");
  BOOST_CHECK_EXCEPTION(dsalt::make_backend(), dsalt::InvalidArgument, [&](const dsalt::InvalidArgument& error) {
    return throws_what(error, "DSALT_BACKEND: got \"tpu\", " + known);
  });
}

BOOST_AUTO_TEST_CASE(loading_keeps_subnormals) {
#if defined(__SSE2__)
  // Copies, because a constructor runs only in the first load of a file.
  const TemporaryFolder folder;
  fs::copy_file(test_module("working"), folder.path() / "control.so");
  fs::copy_file(test_module("working"), folder.path() / "guarded.so");
  BOOST_REQUIRE(keeps_subnormals());
  bool control = true;
  std::thread([&] {
    BOOST_REQUIRE(dlopen((folder.path() / "control.so").c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
    control = keeps_subnormals();
  }).join();
  BOOST_TEST(!control);  // this module does set flush-to-zero

  BOOST_TEST(cuda_info(with_module(folder.path() / "guarded.so")).available);
  BOOST_TEST(keeps_subnormals());
  const auto backend = dsalt::make_backend("cuda", with_module(folder.path() / "guarded.so"));
  BOOST_TEST(keeps_subnormals());
#endif
  dsalt::list_backends();  // whatever module there is
  BOOST_TEST(keeps_subnormals());
}

BOOST_AUTO_TEST_CASE(many_threads_at_once) {
  const TemporaryFolder folder;
  fs::copy_file(test_module("working"), folder.path() / "fresh.so");
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const dsalt::BackendOptions working = with_module(folder.path() / "fresh.so");
      const dsalt::BackendOptions broken = with_module(test_module(t % 2 ? "wrong_abi" : "no_entry"));
      for (int i = 0; i < 20; ++i) {
        right += cuda_info(working).available;
        right += !cuda_info(broken).available;
        right += dsalt::make_backend("cuda:1", working)->name() == "cuda:1";
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(right == 8 * 20 * 3);
}

BOOST_AUTO_TEST_SUITE_END()
