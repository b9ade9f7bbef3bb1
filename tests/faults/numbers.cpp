// Faults of arithmetic: extreme logits, low-precision sums, the base of the logarithm, gradients of lse, the scale, and
// runs that differ from each other.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "definition.hpp"

namespace dsalt::faults {
namespace {

/// One unit in the last place of a value of the dtype.
double ulp(double value, DType dtype) { return std::ldexp(1.0, std::ilogb(value) + 1) * unit_roundoff(dtype); }

}  // namespace

BOOST_AUTO_TEST_SUITE(numbers)

BOOST_AUTO_TEST_CASE(very_negative_logits) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    std::vector<double> extremes = {-60000, 60000};  // float16 ends at 65504
    if (dtype == DType::f32 || dtype == DType::bf16) extremes.insert(extremes.end(), {-1e30, 1e30});
    if (dtype == DType::f64) extremes.insert(extremes.end(), {-1e300, 1e300});
    for (const double extreme : extremes) {
      BOOST_TEST_CONTEXT("q=" << extreme) {
        Call call = one_head(Mask::causal, 2, {1, 100}, dtype);
        call.q = tensor({1, 1, 2, 1}, {extreme, 0}, dtype);
        call.k = tensor({1, 1, 2, 1}, {1, 0}, dtype);
        const double stored = values(call.q)[0];
        const Result r = run(backend, call);
        check_near(r.out, {1, 50.5});
        check_near(r.lse, {stored, std::log(2)});
        check_near(r.dv, {1.5, .5});
        check_all(r.dq.view().narrow(2, 0, 1), 0);  // one key: the softmax is constant
        // row 1: ds = P (v - o) = .5 (1 - 50.5), dq = ds_0 k_0; dk = ds q = 0
        check_near(r.dq.view().narrow(2, 1, 1), {-24.75}, 64);
        check_all(r.dk, 0);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(a_dominating_logit_of_either_sign) {
  on_every_backend(Operation::attention, {DType::f64, DType::f32, DType::bf16}, [](Backend& backend, DType dtype) {
    for (const double q : {3e4, -3e4, 1e18, -1e18}) {
      BOOST_TEST_CONTEXT("q=" << q) {
        Call call = one_head(Mask::full, 1, {5, 7}, dtype);
        call.q = tensor({1, 1, 1, 1}, {q}, dtype);
        call.k = tensor({1, 1, 2, 1}, {1, -1}, dtype);
        const Result r = run(backend, call);
        check_all(r.out, q > 0 ? 5 : 7);
        check_near(r.lse, {std::fabs(values(call.q)[0])});
        check_all(r.dq, 0);
        check_all(r.dk, 0);
        check_near(r.dv, {q > 0 ? 1.0 : 0.0, q > 0 ? 0.0 : 1.0});
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(low_precision_sums) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const std::int64_t n : {1000, 4096}) {
      for (const double c : {1.0, 1.0078125, -0.3, 3.14159, 1000.5, 1e-4}) {
        BOOST_TEST_CONTEXT("N=" << n << " v=" << c) {
          Call call = one_head(Mask::full, 2, std::vector<double>(static_cast<std::size_t>(n), c), dtype);
          call.dout = {};
          const double stored = values(call.v)[0];
          const Result r = run(backend, call);
          // one unit in the last place of a 16-bit result; a wide result may carry the roundings of its own n additions
          const double ulps = size_of(dtype) == 2 ? 1 : c == 1 ? 4 : static_cast<double>(n);
          for (const double out : values(r.out))
            BOOST_TEST(std::fabs(out - stored) <= ulps * ulp(stored, dtype),
                       out << " is not within " << ulps << " ulp");
          check_near(r.lse, {std::log(static_cast<double>(n)), std::log(static_cast<double>(n))});
        }
      }
    }
    BOOST_REQUIRE_SMALL(std::log(1000) - 6.907755, 1e-6);
  });
}

BOOST_AUTO_TEST_CASE(low_precision_sums_of_gradients) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    // every query sees the one key: dv is the sum of 1000 ones; a 16-bit accumulator stops at 256 (bf16) or 2048 (f16)
    const std::int64_t nq = 4000;
    Call call = one_head(Mask::full, nq, {2}, dtype);
    check_near(run(backend, call).dv, {4000});
  });
}

BOOST_AUTO_TEST_CASE(wrong_yardstick) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const Mask mask : {Mask::full, Mask::causal}) {
      Call call;
      call.problem.mask = mask;
      const Shape shape = {1, 2, 65, 64};
      call.q = random_tensor(shape, 40, dtype, 5);
      call.k = random_tensor(shape, 41, dtype, 5);
      call.v = random_tensor(shape, 42, dtype, 5);
      const Definition exact = by_definition(call);
      BOOST_REQUIRE(exact.largest_score > 20);
      const std::vector<double> out = values(run(backend, call).out);
      const double u_acc = dtype == DType::f64 ? 0x1p-53 : 0x1p-24, u = unit_roundoff(dtype);
      double worst = 0;
      for (std::size_t n = 0; n < out.size(); ++n) {
        const double condition = exact.absolute[n] * (u + u_acc * (1 + exact.largest_score));
        worst = std::max(worst, std::fabs(out[n] - exact.out[n]) / (4 * condition + u * std::fabs(exact.out[n])));
      }
      BOOST_TEST(worst <= 1);
    }
  });
}

BOOST_AUTO_TEST_CASE(lse_base) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call call = one_head(Mask::full, 1, {0, 0, 0}, dtype);
    call.q = filled({1, 1, 1, 1}, 1, dtype);
    call.k = tensor({1, 1, 3, 1}, {1, 2, 3}, dtype);
    const double natural = std::log(std::exp(1) + std::exp(2) + std::exp(3));
    BOOST_REQUIRE_SMALL(natural - 3.407606, 1e-6);
    check_near(run(backend, call).lse, {natural});
    call.problem.scale = -2;
    check_near(run(backend, call).lse, {std::log(std::exp(-2) + std::exp(-4) + std::exp(-6))});
  });
}

BOOST_AUTO_TEST_CASE(gradient_of_lse) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call call = one_head(Mask::full, 1, {3, 5}, dtype);
    call.q = filled({1, 1, 1, 1}, 1, dtype);
    call.k = tensor({1, 1, 2, 1}, {0, 1}, dtype);
    call.dout = {};
    call.dlse = filled({1, 1, 1}, 1, statistics_dtype(dtype));
    const double p1 = 1 / (1 + std::exp(-1));
    BOOST_REQUIRE_SMALL(p1 - .731059, 1e-6);
    const Result r = run(backend, call);
    check_near(r.dq, {p1});
    check_near(r.dk, {1 - p1, p1});
    check_all(r.dv, 0);

    // both gradients together are the sum of each alone
    call.dout = filled({1, 1, 1, 1}, 1, dtype);
    const Result both = run(backend, call);
    call.dlse = {};
    const Result only_out = run(backend, call);
    const double ds = p1 * (1 - p1) * (5 - 3);
    check_near(only_out.dq, {ds}, 64 + 8 * unit_roundoff(dtype) / 0x1p-24);  // delta may use the rounded out
    check_near(both.dq, {ds + p1}, 64 + 8 * unit_roundoff(dtype) / 0x1p-24);
  });
}

BOOST_AUTO_TEST_CASE(scale_as_sentinel) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const double from_stored_out = 8 * unit_roundoff(dtype) / (dtype == DType::f64 ? 0x1p-53 : 0x1p-24);
    Call call = one_head(Mask::full, 1, {0, 1}, dtype);
    call.q = filled({1, 1, 1, 1}, 1, dtype);
    call.k = tensor({1, 1, 2, 1}, {0, 2}, dtype);
    call.problem.scale = -1;
    const double p1 = 1 / (1 + std::exp(2)), ds = p1 * (1 - p1);
    BOOST_REQUIRE_SMALL(p1 - .119203, 1e-6);
    BOOST_REQUIRE_SMALL(-2 * ds - -.209987, 1e-6);
    const Result negative = run(backend, call);
    check_near(negative.out, {p1});
    check_near(negative.dq, {-2 * ds}, 16 + from_stored_out);
    check_near(negative.dk, {ds, -ds}, 16 + from_stored_out);

    call.problem.scale = 0;
    const Result zero = run(backend, call);
    check_near(zero.out, {.5});
    check_near(zero.lse, {std::log(2)});
    check_all(zero.dq, 0);
    check_all(zero.dk, 0);

    call.problem.scale.reset();  // absent: 1/sqrt(D) = 1
    check_near(run(backend, call).out, {1 / (1 + std::exp(-2))});

    for (const double bad : {infinity, -infinity, nan}) {
      call.problem.scale = bad;
      BOOST_CHECK_EXCEPTION(run(backend, call), InvalidArgument, [](const InvalidArgument& error) {
        return std::string(error.what()).find("scale") != std::string::npos;
      });
    }
  });
}

BOOST_AUTO_TEST_CASE(nondeterminism) {
  // 30 backward passes of the same call, and with other numbers of threads. A sanitizer makes each one 30 times slower
  // and looks at memory, not at bytes: there the plain build's 30 are left to the plain build.
#ifdef __SANITIZE_ADDRESS__
  const int passes = 2;
#else
  const int passes = 30;
#endif
  for (const std::string& name : host_backends()) {
    BOOST_TEST_CONTEXT(name) {
      Call call;
      call.problem.mask = Mask::causal;
      const Shape shape = {1, 2, 1000, 64};
      call.q = random_tensor(shape, 43);
      call.k = random_tensor(shape, 44);
      call.v = random_tensor(shape, 45);
      call.dout = random_tensor(shape, 46);
      BackendOptions options;
      options.deterministic = true;
      const std::unique_ptr<Backend> backend = make_backend(name, options);
      Result first = run(*backend, call);
      for (int again = 1; again < passes; ++again) {
        const Result r = run(*backend, call);
        BOOST_REQUIRE_MESSAGE(differing(r, first) == "", "run " << again << ": " << differing(r, first));
      }
      if (!backend->reproducibility(Operation::attention, Direction::backward).threads) continue;
      for (const int threads : {1, 2, 7}) {
        options.threads = threads;
        const Result r = run(*make_backend(name, options), call);
        BOOST_TEST(differing(r, first) == "", threads << " threads: " << differing(r, first));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_vanishing_tau_is_a_hard_edge) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const double tau : {1e-30, 1e-310, 5e-324}) {
      Call call = one_head(Mask::sparse, 4, {0, 1, 2, 3}, dtype);
      call.window = tensor({1, 1, 4}, {.5, 1.5, .5, 2.5}, statistics_dtype(dtype));
      call.problem.soft_edge = SoftEdge{2, tau};
      const Result r = run(backend, call);
      check_near(r.out, {0, .5, 2, 2});
      check_all(r.dwindow, 0);
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
