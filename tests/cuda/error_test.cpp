// A device that fails: the error is a DeviceError that names the operation, nothing crashes afterwards, and nothing is
// computed any more. The failure is for good, so this program tests nothing else.
#include <boost/test/unit_test.hpp>

#include "calls.hpp"
#include "dsalt/errors.hpp"
#include "gpu_support.hpp"

using namespace dsalt;
using namespace gpu_test;

BOOST_AUTO_TEST_CASE(a_bad_address_is_a_named_error) {
  auto cuda = make_cuda();
  std::vector<Call> calls = every_call(*cuda, DType::f32);
  const TensorView nowhere =
      TensorView::of(reinterpret_cast<void*>(std::uintptr_t{1} << 40), DType::f32, {1 << 20}, cuda->device());
  try {
    swiglu_forward(*cuda, {nowhere, nowhere}, nowhere);
    cuda->synchronize();
    BOOST_ERROR("writing to an address that is not the device's went unnoticed");
  } catch (const DeviceError& error) {
    BOOST_TEST_MESSAGE(error.what());
    BOOST_TEST(std::string(error.what()).find("swiglu_forward") != std::string::npos, error.what());
  }
  for (const Call& call : calls) BOOST_CHECK_THROW((call.run(*cuda), cuda->synchronize()), DeviceError);
  BOOST_CHECK_THROW(empty(*cuda, Shape{16}, DType::f32), DeviceError);
  calls.clear();
  cuda.reset();
}
