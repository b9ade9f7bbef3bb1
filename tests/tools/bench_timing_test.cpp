// What a repetition of `dsalt bench` is: one call on the host, many calls and one wait on a device.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <thread>
#include <vector>

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

// The copies' rate changes while a row is measured: every call is held against what copies reached beside it. What is
// asked here holds however long a busy machine makes each of the sleeps.
BOOST_AUTO_TEST_CASE(copies_between_repetitions) {
  const auto host = make_backend("cpu");
  const auto call = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  const auto copied = [&](const std::vector<double>& rates) {
    std::size_t copies = 0;
    const benchmark::Timing timing = benchmark::time_calls(*host, call, 0, [&] { return rates.at(copies++); });
    BOOST_TEST(copies == timing.repetitions + 1);
    BOOST_TEST_REQUIRE(timing.copied.has_value());
    return *timing.copied;
  };
  const double between = copied({40e9, 40e9, 80e9, 80e9});  // 40, 60 and 80 GB/s beside the three repetitions
  BOOST_TEST(between >= 40e9 * (1 - 1e-12));
  BOOST_TEST(between <= 80e9 * (1 + 1e-12));
  // One repetition out of three does not decide.
  BOOST_TEST(copied({40e9, 40e9, 40e9, 1e20}) < 1e15);
  BOOST_TEST(copied({1e20, 40e9, 40e9, 40e9}) < 1e15);
  BOOST_TEST(copied({40e9, 1e20, 1e20, 40e9}) > 1e15);
  BOOST_TEST(!benchmark::time_calls(*host, call, 0).copied.has_value());
}

BOOST_AUTO_TEST_SUITE_END()
