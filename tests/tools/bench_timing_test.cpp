// What a repetition of `dsalt bench` is: one call on the host, many calls and one wait on a device.
#include <boost/test/unit_test.hpp>

#include "../verification/fake_device.hpp"
#include "bench/timing.hpp"
#include "dsalt/registry.hpp"

namespace {

using namespace dsalt;

struct CountingDevice : fake_device::FakeDevice {
  CountingDevice() : FakeDevice(make_backend("cpu")) {}
  void synchronize() override {
    ++waits;
    FakeDevice::synchronize();
  }
  std::size_t waits = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(bench_timing)

BOOST_AUTO_TEST_CASE(a_device_gets_many_calls_before_a_wait) {
  CountingDevice device;
  std::size_t calls = 0;
  const benchmark::Timing timing = benchmark::time_calls(
      device, [&] { ++calls; }, 0);
  BOOST_TEST(timing.repetitions == 3u);
  BOOST_TEST(timing.calls > 100u);  // one takes nanoseconds, a repetition ten milliseconds
  BOOST_TEST(calls >= 3 * timing.calls);
  BOOST_TEST(device.waits < calls / 10);
}

BOOST_AUTO_TEST_CASE(the_host_times_each_call) {
  const auto host = make_backend("cpu");
  std::size_t calls = 0;
  const benchmark::Timing timing = benchmark::time_calls(
      *host, [&] { ++calls; }, 0);
  BOOST_TEST(timing.calls == 1u);
  BOOST_TEST(calls == timing.repetitions);
}

BOOST_AUTO_TEST_SUITE_END()
