// Calls that need more blocks than a device runs: an error that names the operation, and nothing is launched.
#include <boost/test/unit_test.hpp>
#include <functional>
#include <initializer_list>
#include <string>

#include "dsalt/errors.hpp"
#include "dsalt/network.hpp"
#include "dsalt/registry.hpp"
#include "dsalt/selectors.hpp"
#include "grid.hpp"

using namespace dsalt;
using cuda::checked_grid;
using cuda::Grid;

namespace {

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(grid)

BOOST_AUTO_TEST_CASE(what_a_device_runs_is_taken) {
  const dim3 small = checked_grid(7, "merge"), largest = checked_grid(Grid(2147483647, 65535, 65535), "merge");
  BOOST_TEST((small.x == 7 && small.y == 1 && small.z == 1));
  BOOST_TEST((largest.x == 2147483647u && largest.y == 65535 && largest.z == 65535));
  BOOST_TEST(checked_grid(0, "merge").x == 0u);  // launch() has nothing to do then
}

BOOST_AUTO_TEST_CASE(anything_else_is_named) {
  BOOST_TEST(
      message_of([] { checked_grid(std::int64_t{1} << 31, "merge"); }) ==
      "merge: a kernel needs a grid of 2147483648 x 1 x 1 blocks, and a device runs at most 2147483647 x 65535 x "
      "65535");
  const Grid refused[] = {-1, std::int64_t{1} << 32, Grid(1, 65536), Grid(1, 1, 65536), Grid(1, -1), Grid(1, 1, -1)};
  for (const Grid& grid : refused) {  // narrowed to 32 bits, some would pass
    const std::string message = message_of([&] { checked_grid(grid, "rope_forward"); });
    BOOST_TEST(message.find("rope_forward: a kernel needs a grid of ") == 0u, message);
  }
}

/// The device is an emulated one (DSALT_MODULE_PATH); the memory does not exist, and nothing may touch it.
BOOST_AUTO_TEST_CASE(operations_refuse_calls_of_more_blocks) {
  const auto backend = make_backend("cuda");
  void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  const auto tensor = [&](std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
    return TensorView::of(nowhere, dtype, shape, backend->device());
  };
  struct Call {
    const char* operation;
    std::function<void()> run;
  };
  const std::int64_t many = std::int64_t{1} << 44;
  const Call calls[] = {
      {"swiglu_forward",
       [&] {
         swiglu_forward(*backend, {tensor({many}), tensor({many})}, tensor({many}));
       }},
      {"rmsnorm_forward",
       [&] {
         rmsnorm_forward(*backend, {}, {tensor({many / 64, 64}), tensor({64})}, tensor({many / 64, 64}));
       }},
      {"energies_forward",
       [&] {
         energies_forward(*backend, {tensor({1, many / 64, 64}), tensor({1, 1, many / 64, 64})},
                          {tensor({1, many / 64}, DType::f32), tensor({1, 1, many / 64}, DType::f32)});
       }},
  };
  for (const Call& call : calls) {
    const std::string message = message_of(call.run);
    BOOST_TEST(message.find(std::string(call.operation) + ": a kernel needs a grid of ") == 0u, message);
  }
}

BOOST_AUTO_TEST_SUITE_END()
