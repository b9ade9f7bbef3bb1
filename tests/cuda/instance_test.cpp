// What an instance of the CUDA backend leaves to its caller: the stream, the current device, the other instances and
// the life of tensors.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "calls.hpp"
#include "dsalt/errors.hpp"
#include "gpu_support.hpp"

using namespace dsalt;
using namespace gpu_test;

BOOST_AUTO_TEST_SUITE(instances)

BOOST_AUTO_TEST_CASE(every_operation_does_its_work) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto cpu = make_backend("cpu"), cuda = make_cuda();
    const std::vector<Call> expected = every_call(*cpu, dtype), calls = every_call(*cuda, dtype);
    for (std::size_t n = 0; n < calls.size(); ++n) {
      expected[n].run(*cpu);
      calls[n].run(*cuda);
      BOOST_TEST(difference(outputs_of(*cuda, calls[n]), outputs_of(*cpu, expected[n])) <= allowed(dtype),
                 calls[n].name << " in " << name_of(dtype));
    }
  }
}

BOOST_AUTO_TEST_CASE(several_in_one_process_do_not_meet) {
  const auto alone = make_cuda(nullptr, true);
  std::vector<std::vector<double>> expected;
  for (const Call& call : every_call(*alone, DType::f32)) {
    call.run(*alone);
    expected.push_back(outputs_of(*alone, call));
  }
  const auto first = make_cuda(nullptr, true), second = make_cuda(nullptr, true);
  const std::vector<Call> one = every_call(*first, DType::f32), two = every_call(*second, DType::f32);
  for (std::size_t n = 0; n < one.size(); ++n) {  // in turns, and each at another operation
    one[n].run(*first);
    two[two.size() - 1 - n].run(*second);
  }
  for (std::size_t n = 0; n < one.size(); ++n) {
    BOOST_TEST(outputs_of(*first, one[n]) == expected[n], boost::test_tools::per_element());
    BOOST_TEST(outputs_of(*second, two[n]) == expected[n], boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(one_for_each_thread) {
  const auto alone = make_cuda(nullptr, true);
  const std::vector<Call> calls = every_call(*alone, DType::bf16);
  for (const Call& call : calls) call.run(*alone);
  std::vector<std::vector<double>> expected;
  for (const Call& call : calls) expected.push_back(outputs_of(*alone, call));
  std::atomic<int> different = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      try {
        const auto own = make_cuda(nullptr, true);
        const std::vector<Call> mine = every_call(*own, DType::bf16);
        for (int round = 0; round < 5; ++round)
          for (std::size_t n = 0; n < mine.size(); ++n) {
            mine[n].run(*own);
            different += difference(outputs_of(*own, mine[n]), expected[n]) != 0;
          }
      } catch (const std::exception&) {
        ++different;
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(different == 0);
}

BOOST_AUTO_TEST_CASE(work_is_on_the_callers_stream) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get());
  const auto reader = make_cuda();  // its own stream
  for (const Call& call : every_call(*cuda, DType::f32)) {
    call.run(*cuda);
    const std::vector<double> expected = outputs_of(*cuda, call);
    clear_outputs(*cuda, call);
    stream.wait();
    {
      Gate gate(stream);
      call.run(*cuda);
      BOOST_TEST(!stream.idle(), call.name);
      for (const double value : outputs_of(*reader, call))
        if (value != 0) {
          BOOST_ERROR(call.name + " wrote something before the stream went on");
          break;
        }
      gate.open();
      stream.wait();  // of the caller: nothing else needs to be waited for
    }
    BOOST_TEST(difference(outputs_of(*reader, call), expected) <= allowed(DType::f32), call.name);
  }
}

BOOST_AUTO_TEST_CASE(calls_return_while_the_stream_stands_still) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::vector<Call> calls = every_call(*cuda, dtype);
    for (const Call& call : calls) call.run(*cuda);  // code is loaded and memory taken
    cuda->synchronize();
    for (const Call& call : calls) {
      Gate gate(stream);
      const auto start = std::chrono::steady_clock::now();
      call.run(*cuda);
      // a call that waits for the stream waits for the gate's twenty seconds
      BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(10)), call.name << " waits");
      BOOST_TEST(!stream.idle(), call.name);
      gate.open();
      stream.wait();
    }
  }
}

BOOST_AUTO_TEST_CASE(memory_is_counted_without_waiting) {
  constexpr std::int64_t rows = 256, width = 64;
  constexpr std::size_t tensor_bytes = rows * width * sizeof(float);
  const Stream stream;
  const auto cuda = make_cuda(stream.get());
  const auto use = [&](bool start_anew = false) { return cuda->memory_use(start_anew).value(); };
  const auto tensor = [&] { return empty(*cuda, std::vector<std::int64_t>{1, 1, rows, width}, DType::f32); };
  BOOST_TEST(use(true).now == 0u);
  Tensor x = tensor(), weight = tensor();
  BOOST_TEST(use().now >= 2 * tensor_bytes);
  BOOST_TEST(use().most >= use().now);
  weight = Tensor();
  cuda->synchronize();
  BOOST_TEST(use().now < 2 * tensor_bytes);
  BOOST_TEST(use(true).most >= 2 * tensor_bytes);  // the highest stays, until it is asked to start anew
  BOOST_TEST(use().most < 2 * tensor_bytes);
  Gate gate(stream);  // the stream stands still: whoever waits for it waits for twenty seconds
  const auto start = std::chrono::steady_clock::now();
  const Tensor later = tensor();
  BOOST_TEST(use(true).most >= use().now);
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(10)));
  gate.open();
}

BOOST_AUTO_TEST_CASE(the_current_device_stays) {
  const int count = device_count();
  for (int current = 0; current < count; ++current)
    for (int index = 0; index < std::min(count, 2); ++index) {
      require(cudaSetDevice(current), "cudaSetDevice");
      const auto unchanged = [&](const std::string& after) {
        int now = -1;
        require(cudaGetDevice(&now), "cudaGetDevice");
        BOOST_TEST(now == current, after);
        void* memory = nullptr;
        require(cudaMalloc(&memory, 16), "cudaMalloc");
        cudaPointerAttributes attributes{};
        require(cudaPointerGetAttributes(&attributes, memory), "cudaPointerGetAttributes");
        BOOST_TEST(attributes.device == current, after);
        require(cudaFree(memory), "cudaFree");
      };
      list_backends();
      unchanged("list_backends");
      auto cuda = make_cuda(nullptr, false, index);
      unchanged("make_backend");
      BOOST_TEST((cuda->device() == Device{DeviceType::cuda, index}));
      std::vector<Call> calls = every_call(*cuda, DType::f32);
      unchanged("allocate and copy");
      for (const Call& call : calls) {
        call.run(*cuda);
        unchanged(call.name);
      }
      cuda->synchronize();
      unchanged("synchronize");
      cuda.reset();
      unchanged("the backend's end");
      calls.clear();
      unchanged("the tensors' end");
    }
  require(cudaSetDevice(0), "cudaSetDevice");
}

BOOST_AUTO_TEST_CASE(tensors_outlive_their_backend) {
  auto first = make_cuda();
  std::vector<Call> calls = every_call(*first, DType::f32);
  calls.front().run(*first);
  const std::vector<double> expected = outputs_of(*first, calls.front());
  first.reset();
  const auto second = make_cuda();
  BOOST_TEST(outputs_of(*second, calls.front()) == expected, boost::test_tools::per_element());
  for (const Call& call : calls) call.run(*second);
  second->synchronize();
  calls.clear();  // after the backend that made them
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(tensors_may_go_while_work_on_them_is_queued) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get()), other = make_cuda();
  Call kept = every_call(*cuda, DType::f32).front();
  kept.run(*cuda);
  const std::vector<double> expected = outputs_of(*cuda, kept);
  clear_outputs(*cuda, kept);
  {
    Gate gate(stream);
    kept.run(*cuda);
    kept.run = {};
    kept.inputs.clear();
    // another instance, which does not stand still, must not be given that memory before the queued work is done
    for (int n = 0; n < 20; ++n) on_device(*other, random_host({1 << 16}, DType::f32, 1, 0, 1));
    gate.open();
    stream.wait();
  }
  BOOST_TEST(difference(outputs_of(*cuda, kept), expected) == 0);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_had_is_an_error_with_words) {
  const auto cuda = make_cuda();
  BOOST_CHECK_EXCEPTION(cuda->allocate(std::size_t{1} << 50), DeviceError,
                        [](const DeviceError& error) { return std::string(error.what()).rfind("allocate: ", 0) == 0; });
  // and the instance goes on
  const Call call = every_call(*cuda, DType::f32).front();
  call.run(*cuda);
  BOOST_TEST(!outputs_of(*cuda, call).empty());
}

BOOST_AUTO_TEST_SUITE_END()
