// Faults of threads, processes, floating-point modes, memory sizes and missing devices.
#include <omp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cfloat>
#include <cmath>
#include <cstdlib>

#include "support.hpp"

namespace dsalt::faults {
namespace {

Call ordinary_call(DType dtype = DType::f32) {
  Call call;
  call.problem.mask = Mask::causal;
  call.q = random_tensor({2, 4, 130, 16}, 80, dtype);
  call.k = random_tensor({2, 2, 130, 16}, 81, dtype);
  call.v = random_tensor({2, 2, 130, 16}, 82, dtype);
  call.dout = random_tensor({2, 4, 130, 16}, 83, dtype);
  return call;
}

/// Half the smallest normal number, computed at run time: 0 when the processor flushes subnormals.
double half_of_the_smallest_normal() {
  volatile double smallest = DBL_MIN;
  return smallest / 2;
}
float half_of_the_smallest_normal_float() {
  volatile float smallest = FLT_MIN;
  return smallest / 2;
}

/// Address space without memory behind it; pages appear when written and read as 0.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BOOST_REQUIRE_MESSAGE(data_ != MAP_FAILED, "cannot reserve " << bytes << " bytes of address space");
  }
  ~Reserved() { munmap(data_, bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  TensorView view(DType dtype, const Shape& shape, const Shape& strides) const {
    TensorView v = TensorView::of(data_, dtype, shape);
    std::int64_t last = 0;
    for (std::size_t n = 0; n < shape.size(); ++n) {
      v.strides[n] = strides[n];
      last += (shape[n] - 1) * strides[n];
    }
    BOOST_REQUIRE(static_cast<std::size_t>(last + 1) * size_of(dtype) <= bytes_);
    BOOST_REQUIRE(last > std::int64_t{1} << 31);  // else the case proves nothing
    return v;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(machines)

BOOST_AUTO_TEST_CASE(offsets_past_2_31_elements) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t far = (std::int64_t{1} << 31) + 64;
    // which dimension takes the stride beyond 2^31 elements: batch, heads or tokens
    const std::pair<Shape, Shape> layouts[] = {{{3, 2, 5, 4}, {far, 20, 4, 1}},
                                               {{1, 3, 5, 4}, {0, far, 4, 1}},
                                               {{1, 2, 3, 4}, {0, 4, far, 1}},
                                               {{1, 1, 3, 2}, {0, 0, 2, far}},
                                               {{1, 1, 2051, 4}, {0, 0, std::int64_t{1} << 20, 1}}};
    for (const auto& [shape, strides] : layouts) {
      BOOST_TEST_CONTEXT("shape [" << shape[0] << "," << shape[1] << "," << shape[2] << "," << shape[3] << "]") {
        const std::size_t bytes = (std::size_t{3} << 31) * size_of(dtype) / (shape[2] > 100 ? 2 : 1) + (1 << 20);
        const Reserved q(bytes), k(bytes), v(bytes), dout(bytes), out(bytes), dq(bytes), dk(bytes), dv(bytes);
        const auto place = [&](const Reserved& memory) { return memory.view(dtype, shape, strides); };
        Call call;
        call.problem.mask = Mask::sparse;
        call.window = filled({shape[0], 1, shape[2]}, 2, statistics_dtype(dtype));
        call.q = random_tensor(shape, 84, dtype);
        call.k = random_tensor(shape, 85, dtype);
        call.v = random_tensor(shape, 86, dtype);
        call.dout = random_tensor(shape, 87, dtype);
        const Result near = run(backend, call);
        copy_elements(call.q, place(q));
        copy_elements(call.k, place(k));
        copy_elements(call.v, place(v));
        copy_elements(call.dout, place(dout));
        AttentionInputs in = call.inputs();
        in.q = place(q), in.k = place(k), in.v = place(v);
        const Tensor lse = filled({shape[0], shape[1], shape[2]}, nan, statistics_dtype(dtype));
        attention_forward(backend, call.problem, in, {place(out), lse});
        attention_backward(backend, call.problem, in, {place(out), lse, place(dout), {}},
                           {place(dq), place(dk), place(dv), {}, {}});
        BOOST_TEST(same_bytes(place(out), near.out));
        BOOST_TEST(same_bytes(lse, near.lse));
        BOOST_TEST(same_bytes(place(dq), near.dq));
        BOOST_TEST(same_bytes(place(dk), near.dk));
        BOOST_TEST(same_bytes(place(dv), near.dv));
        // a window of 0 carries v and dout through, to the last row
        in.window = {};
        const Tensor none = filled({shape[0], 1, shape[2]}, 0, statistics_dtype(dtype));
        in.window = none;
        attention_forward(backend, call.problem, in, {place(out), lse});
        attention_backward(backend, call.problem, in, {place(out), lse, place(dout), {}}, {{}, {}, place(dv), {}, {}});
        BOOST_TEST(same_bytes(place(out), call.v));
        BOOST_TEST(same_bytes(place(dv), call.dout));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(offsets_past_2_31_elements_backwards) {
  on_every_backend(Operation::attention, {DType::f32, DType::bf16}, [](Backend& backend, DType dtype) {
    const std::int64_t far = (std::int64_t{1} << 31) + 64;
    const Reserved memory((std::size_t{3} << 31) * size_of(dtype) + (1 << 20));
    Call call = one_head(Mask::causal, 3, {1, 2, 4}, dtype);
    TensorView reversed = memory.view(dtype, {1, 1, 3, 1}, {0, 0, far, 1});
    reversed.data = static_cast<std::byte*>(reversed.data) + 2 * far * static_cast<std::int64_t>(size_of(dtype));
    reversed.strides[2] = -far;
    copy_elements(call.v, reversed);
    AttentionInputs in = call.inputs();
    in.v = reversed;
    const Tensor out = filled({1, 1, 3, 1}, nan, dtype);
    attention_forward(backend, call.problem, in, {out, {}});
    check_near(out, {1, 1.5, 7. / 3});
  });
}

BOOST_AUTO_TEST_CASE(nested_threads) {
  for (const std::string& name : host_backends()) {
    BOOST_TEST_CONTEXT(name) {
      const Call call = ordinary_call();
      const std::unique_ptr<Backend> outer = make_backend(name);
      const Result alone = run(*outer, call);
      for (const int levels : {1, 2}) {
        omp_set_max_active_levels(levels);
        // Results are made in the threads and compared outside: Boost.Test is not thread-safe, and an exception must
        // not leave a parallel region.
        Result results[2];
        std::string errors[2];
        int ran = 0;
#pragma omp parallel num_threads(2) reduction(+ : ran)
        {
          const int me = omp_get_thread_num();
          try {
            const std::unique_ptr<Backend> mine = make_backend(name);
            for (int again = 0; again < 3; ++again) results[me] = run(*mine, call);
          } catch (const std::exception& error) {
            errors[me] = error.what();
          }
          ran += 1;
        }
        BOOST_TEST(ran == 2);
        for (int thread = 0; thread < ran; ++thread) {
          BOOST_TEST(errors[thread] == "");
          BOOST_TEST(differing(results[thread], alone) == "");
        }
      }
      omp_set_max_active_levels(1);
    }
  }
}

BOOST_AUTO_TEST_CASE(fork_after_use) {
  for (const std::string& name : host_backends()) {
    BOOST_TEST_CONTEXT(name) {
      const Call call = ordinary_call();
      BackendOptions options;
      options.threads = 2;
      const std::unique_ptr<Backend> backend = make_backend(name, options);
      const Result before = run(*backend, call);  // the thread pool exists now
      for (const bool fresh : {false, true}) {    // the inherited instance, and one made in the child
        const pid_t child = fork();
        BOOST_REQUIRE(child >= 0);
        if (child == 0) {
          signal(SIGALRM, SIG_DFL);
          alarm(20);  // a hang ends here, and the parent sees SIGALRM
          int code = 3;
          try {
            const std::unique_ptr<Backend> own = fresh ? make_backend(name, options) : nullptr;
            code = differing(run(fresh ? *own : *backend, call), before).empty() ? 0 : 1;
          } catch (...) {
            code = 2;
          }
          _exit(code);
        }
        int status = 0;
        BOOST_REQUIRE(waitpid(child, &status, 0) == child);
        BOOST_TEST(!WIFSIGNALED(status), "the child was ended by signal "
                                             << WTERMSIG(status) << (WTERMSIG(status) == SIGALRM ? ": it hung" : ""));
        if (WIFEXITED(status))
          BOOST_TEST(WEXITSTATUS(status) == 0,
                     "the child's result: " << WEXITSTATUS(status) << " (1 other bytes, 2 exception, 3 nothing)");
      }
      BOOST_TEST(differing(run(*backend, call), before) == "");  // and the parent still works
    }
  }
}

BOOST_AUTO_TEST_CASE(no_flush_to_zero_after_loading_any_backend) {
  for (const BackendInfo& info : list_backends()) {
    if (info.available) make_backend(info.name);
    BOOST_TEST(half_of_the_smallest_normal() != 0, info.name << " sets flush-to-zero");
    BOOST_TEST(half_of_the_smallest_normal_float() != 0, info.name << " sets flush-to-zero");
  }
  for (const std::string& name : host_backends()) {
    run(*make_backend(name), ordinary_call());
    int flushed = 0;
#pragma omp parallel reduction(+ : flushed)
    flushed += half_of_the_smallest_normal() == 0 || half_of_the_smallest_normal_float() == 0;
    BOOST_TEST(flushed == 0, name << " leaves flush-to-zero in " << flushed << " threads");
  }
}

BOOST_AUTO_TEST_CASE(subnormal_values_pass_through) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    // 1e-40 is subnormal in float32 and bfloat16; for the others the smallest numbers of their own
    const double tiny = dtype == DType::f64 ? 1e-310 : dtype == DType::f16 ? 0x1p-24 : 1e-40;
    Call one = one_head(Mask::causal, 1, {tiny}, dtype);
    one.dout = filled({1, 1, 1, 1}, tiny, dtype);
    const Result r = run(backend, one);
    BOOST_TEST(values(r.out)[0] != 0);
    BOOST_TEST(same_bytes(r.out, one.v));
    BOOST_TEST(same_bytes(r.dv, one.dout));

    // the mean of N equal ones, in every thread and every part of a tile
    const std::int64_t n = 67;
    Call many;
    many.q = many.k = filled({1, 8, n, 20}, 0, dtype);
    many.v = filled({1, 8, n, 20}, tiny, dtype);
    const double stored = values(many.v)[0], step = dtype == DType::f16    ? 0x1p-24
                                                    : dtype == DType::bf16 ? 0x1p-133
                                                    : dtype == DType::f32  ? 0x1p-149
                                                                           : 0x1p-1074;
    for (const double x : values(run(backend, many).out)) {
      // weights 1/67 round, and each of the 67 products is rounded to a subnormal: half a step each
      const double products = dtype == DType::f16 ? 0 : n / 2.0 * (dtype == DType::f64 ? 0x1p-1074 : 0x1p-149);
      BOOST_REQUIRE_MESSAGE(x != 0 && std::fabs(x - stored) <= products + step, x << " for the mean of " << stored);
    }
  });
}

BOOST_AUTO_TEST_CASE(subnormals_in_the_other_operations) {
  on_every_backend(Operation::swiglu, {DType::f32, DType::bf16}, [](Backend& backend, DType dtype) {
    const Tensor gate = filled({40}, 40, dtype), up = filled({40}, 1e-40, dtype), y = filled({40}, nan, dtype);
    swiglu_forward(backend, {gate, up}, y);  // silu(40) = 40 to the last bit of float32
    for (const double x : values(y)) BOOST_TEST(std::fabs(x - 40 * values(up)[0]) <= 0x1p-133);
  });
  on_every_backend(Operation::rope, {DType::f32, DType::bf16}, [](Backend& backend, DType dtype) {
    const Tensor x = filled({1, 1, 1, 8}, 1e-40, dtype), y = filled({1, 1, 1, 8}, nan, dtype);
    rope_forward(backend, {}, {x, {}, {}}, y);  // position 0: no rotation
    BOOST_TEST(same_bytes(x, y));
  });
}

BOOST_AUTO_TEST_CASE(every_backend_is_listed_with_a_state_and_a_reason) {
  std::string names;
  for (const BackendInfo& info : list_backends()) {
    names += info.name + " ";
    BOOST_TEST(!info.detail.empty(), info.name << " says nothing about itself");
    if (info.available) {
      BOOST_TEST(make_backend(info.name)->name().substr(0, info.name.size()) == info.name);
    } else {
      // asked for by name, it refuses with the listed reason and nothing takes its place
      BOOST_CHECK_EXCEPTION(make_backend(info.name), BackendUnavailable, [&](const BackendUnavailable& error) {
        return std::string(error.what()).find(info.detail) != std::string::npos;
      });
    }
  }
  BOOST_TEST(names == "reference cpu cuda ");
}

BOOST_AUTO_TEST_CASE(without_a_device_the_cpu_works_and_cuda_says_why) {
  bool cuda = false;
  for (const BackendInfo& info : list_backends()) cuda |= info.name == "cuda" && info.available;
  const char* before = std::getenv("DSALT_BACKEND");
  const std::string saved = before ? before : "";

  setenv("DSALT_BACKEND", "cuda", 1);
  if (cuda)
    BOOST_TEST(make_backend()->name().starts_with("cuda"));
  else
    BOOST_CHECK_THROW(make_backend(), BackendUnavailable);
  setenv("DSALT_BACKEND", "no such backend", 1);
  BOOST_CHECK_THROW(make_backend(), InvalidArgument);
  setenv("DSALT_BACKEND", "cpu", 1);
  const std::unique_ptr<Backend> cpu = make_backend();
  BOOST_TEST(cpu->name() == "cpu");
  check_near(run(*cpu, one_head(Mask::causal, 2, {1, 2})).out, {1, 1.5});
  setenv("DSALT_BACKEND", "reference", 1);
  BOOST_TEST(make_backend()->name() == "reference");
  unsetenv("DSALT_BACKEND");
  BOOST_TEST(make_backend()->name() == (cuda ? "cuda:0" : "cpu"));  // "auto" says what it chose
  if (before) setenv("DSALT_BACKEND", saved.c_str(), 1);

  for (const char* unknown : {"CUDA", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "gpu", " cpu"})
    BOOST_CHECK_THROW(make_backend(unknown), InvalidArgument);
  BOOST_CHECK_THROW(make_backend("cuda:4095"), BackendUnavailable);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
