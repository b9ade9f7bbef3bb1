// Faults of masks and of merging. Unless said otherwise B = H = D = 1, scale 1 and q = 0, so that all
// logits are equal and each output is the mean of the admitted values.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>

#include "definition.hpp"

namespace dsalt::faults {
namespace {

double mean(const std::vector<double>& v, std::int64_t begin, std::int64_t end) {
  double sum = 0;
  for (std::int64_t j = begin; j < end; ++j) sum += v[static_cast<std::size_t>(j)];
  return sum / static_cast<double>(end - begin);
}

Call one_head_windowed(const std::vector<double>& window, const std::vector<double>& v, DType dtype) {
  const auto n = static_cast<std::int64_t>(v.size());
  Call call = one_head(Mask::sparse, n, v, dtype);
  call.window = tensor({1, 1, n}, window, statistics_dtype(dtype));
  return call;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(masks)

BOOST_AUTO_TEST_CASE(rows_that_see_nothing) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const Result r = run(backend, one_head(Mask::causal, 5, {1, 3}, dtype));
    check_near(r.out, {0, 0, 0, 1, 2});
    check_near(r.lse, {-infinity, -infinity, -infinity, 0, std::log(2)});
    check_all(r.dq, 0);
    check_all(r.dk, 0);
    check_near(r.dv, {1.5, 0.5});
  });
}

BOOST_AUTO_TEST_CASE(rows_that_see_nothing_for_every_pair_of_lengths) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (std::int64_t nq = 0; nq <= 9; ++nq) {
      for (std::int64_t nk = 0; nk <= 5; ++nk) {
        BOOST_TEST_CONTEXT("Nq=" << nq << " Nk=" << nk) {
          const Result r = run(backend, one_head(Mask::causal, nq, counting(nk), dtype));
          std::vector<double> out, lse, dv(static_cast<std::size_t>(nk), 0);
          for (std::int64_t i = 0; i < nq; ++i) {
            const std::int64_t seen = std::max<std::int64_t>(0, i + nk - nq + 1);
            out.push_back(seen == 0 ? 0 : static_cast<double>(seen - 1) / 2);
            lse.push_back(std::log(static_cast<double>(seen)));  // log 0 = -inf
            for (std::int64_t j = 0; j < seen; ++j) dv[static_cast<std::size_t>(j)] += 1 / static_cast<double>(seen);
          }
          if (nq > 0) {
            check_near(r.out, out, 16 + weight_slack(dtype));
            check_near(r.lse, lse);
            check_all(r.dq, 0);
          }
          if (nk > 0) {
            check_near(r.dv, dv, 16 + weight_slack(dtype));
            check_all(r.dk, 0);
          }
        }
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(merging_empty_parts) {
  on_every_backend(Operation::merge, all_floating, [](Backend& backend, DType dtype) {
    const DType stat = statistics_dtype(dtype);
    const std::int64_t rows = 3, dim = 5;
    const Tensor some = random_tensor({rows, dim}, 1, dtype), some_lse = random_tensor({rows}, 2, stat, 30);
    const Tensor zero = filled({rows, dim}, 0, dtype), garbage = filled({rows, dim}, nan, dtype);
    const Tensor nothing = filled({rows}, -infinity, stat);
    const auto merged = [&](const Tensor& o1, const Tensor& l1, const Tensor& o2, const Tensor& l2) {
      Result r;
      r.out = filled({rows, dim}, nan, dtype);
      r.lse = filled({rows}, nan, stat);
      merge(backend, {o1, l1, o2, l2}, {r.out, r.lse});
      return r;
    };
    for (const Tensor& empty_out : {zero, garbage}) {
      const Result both = merged(empty_out, nothing, empty_out, nothing);
      check_all(both.out, 0);
      check_all(both.lse, -infinity);
      for (const Result& r : {merged(empty_out, nothing, some, some_lse), merged(some, some_lse, empty_out, nothing)}) {
        BOOST_TEST(same_bytes(r.out, some));
        BOOST_TEST(same_bytes(r.lse, some_lse));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(merging_an_undefined_lse_is_never_silent) {
  on_every_backend(Operation::merge, all_floating, [](Backend& backend, DType dtype) {
    const DType stat = statistics_dtype(dtype);
    const Tensor one = filled({1, 2}, 1, dtype), two = filled({1, 2}, 2, dtype);
    for (const double undefined : {nan, infinity})
      for (const double other : {-infinity, 0.0})
        for (const bool first : {true, false}) {
          const Tensor out = filled({1, 2}, 0, dtype), lse = filled({1}, 0, stat);
          merge(backend,
                {one, filled({1}, first ? undefined : other, stat), two, filled({1}, first ? other : undefined, stat)},
                {out, lse});
          for (const double value : values(out)) BOOST_TEST(std::isnan(value));
          for (const double value : values(lse)) BOOST_TEST(std::isnan(value));
        }
  });
}

BOOST_AUTO_TEST_CASE(merging_any_number_of_splits_equals_the_whole) {
  on_every_backend(Operation::merge, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t nq = 2, dim = 4;
    for (std::int64_t nk = 0; nk <= 9; ++nk) {
      Call whole;
      whole.problem.mask = Mask::full;
      whole.q = random_tensor({1, 1, nq, dim}, 3, dtype, 2);
      whole.k = random_tensor({1, 1, nk, dim}, 4, dtype, 2);
      whole.v = random_tensor({1, 1, nk, dim}, 5, dtype);
      const Definition expected = by_definition(whole);
      for (std::int64_t parts = 1; parts <= 8; ++parts) {
        BOOST_TEST_CONTEXT("Nk=" << nk << " in " << parts << " splits") {
          Result sum;
          sum.out = filled({1, 1, nq, dim}, 0, dtype);
          sum.lse = filled({1, 1, nq}, -infinity, statistics_dtype(dtype));
          const std::int64_t width = (nk + parts - 1) / parts;  // the last splits may be empty, as in split-k kernels
          for (std::int64_t part = 0; part < parts; ++part) {
            const std::int64_t begin = std::min(nk, part * width), end = std::min(nk, begin + width);
            Call slice = whole;
            slice.k = Tensor(whole.k.storage(), whole.k.view().narrow(2, begin, end - begin));
            slice.v = Tensor(whole.v.storage(), whole.v.view().narrow(2, begin, end - begin));
            const Result one = run(backend, slice);
            Result next;
            next.out = filled({1, 1, nq, dim}, nan, dtype);
            next.lse = filled({1, 1, nq}, nan, statistics_dtype(dtype));
            merge(backend, {sum.out, sum.lse, one.out, one.lse}, {next.out, next.lse});
            sum = next;
          }
          // each split rounds its out to the dtype once, and so does each merge
          const double rounding = static_cast<double>(2 * parts) * unit_roundoff(dtype);
          const double u_acc = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          check_near(sum.out, expected.out, 16 + rounding / u_acc);
          check_near(sum.lse, expected.lse, 32);
        }
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(causal_alignment) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::vector<double> v = {1, 2, 3, 4, 5};
    check_near(run(backend, one_head(Mask::causal, 2, v, dtype)).out, {2.5, 3.0});

    Call packed = one_head(Mask::causal, 2, v, dtype);
    packed.q = filled({2, 1, 1}, 0, dtype);
    packed.k = filled({5, 1, 1}, 0, dtype);
    packed.v = tensor({5, 1, 1}, v, dtype);
    packed.dout = filled({2, 1, 1}, 1, dtype);
    packed.cu_seqlens_q = indices({2}, {0, 2});
    packed.cu_seqlens_k = indices({2}, {0, 5});
    check_near(run(backend, packed).out, {2.5, 3.0});

    Call cache = one_head(Mask::causal, 2, {1, 2, 3, 4, 5, nan, nan}, dtype);
    cache.k_lengths = indices({1}, {5});
    check_near(run(backend, cache).out, {2.5, 3.0});

    Call window = one_head(Mask::sparse, 2, v, dtype);
    window.window = indices({1, 1, 2}, {100, 100});
    check_near(run(backend, window).out, {2.5, 3.0});
  });
}

BOOST_AUTO_TEST_CASE(window_off_by_one) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::vector<double> v = counting(6);
    check_near(run(backend, one_head_windowed({2}, v, dtype)).out, {0, .5, 1, 2, 3, 4});
    for (std::int64_t w = 0; w <= 7; ++w) {
      BOOST_TEST_CONTEXT("w=" << w) {
        std::vector<double> out, lse;
        for (std::int64_t i = 0; i < 6; ++i) {
          const std::int64_t begin = std::max<std::int64_t>(0, i - w);
          out.push_back(mean(v, begin, i + 1));
          lse.push_back(std::log(static_cast<double>(i + 1 - begin)));
        }
        // a fractional w reaches as far as its whole part
        for (const double fraction : {0.0, 0.5, 0.9375}) {
          const Result r = run(backend, one_head_windowed({static_cast<double>(w) + fraction}, v, dtype));
          check_near(r.out, out);
          check_near(r.lse, lse);
        }
        Call whole = one_head_windowed({0}, v, dtype);
        whole.window = indices({1, 1, 6}, std::vector<std::int32_t>(6, static_cast<std::int32_t>(w)));
        check_near(run(backend, whole).out, out);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(window_just_below_a_whole_number) {
  on_every_backend(Operation::attention, {DType::f64, DType::f32}, [](Backend& backend, DType dtype) {
    const double below = dtype == DType::f64 ? std::nextafter(2.0, 0.0) : static_cast<double>(std::nextafterf(2, 0));
    check_near(run(backend, one_head_windowed({below}, counting(6), dtype)).out, {0, .5, 1.5, 2.5, 3.5, 4.5});
  });
}

BOOST_AUTO_TEST_CASE(window_of_zero_copies_the_value_bit_for_bit) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call call;
    call.problem.mask = Mask::sparse;
    const std::int64_t n = 130, dim = 20;
    call.q = random_tensor({2, 2, n, dim}, 6, dtype, 30);
    call.k = random_tensor({2, 2, n, dim}, 7, dtype, 30);
    call.v = random_tensor({2, 2, n, dim}, 8, dtype, 3);
    call.dout = random_tensor({2, 2, n, dim}, 9, dtype);
    call.window = filled({2, 1, n}, 0, statistics_dtype(dtype));
    const Result r = run(backend, call);
    BOOST_TEST(same_bytes(r.out, call.v));
    BOOST_TEST(same_bytes(r.dv, call.dout));
  });
}

// A tile adds the weight 0 of masked keys to a sum, which turns -0 into +0: the sign of a zero output is the one thing
// that the contract leaves open. The reference and merge keep it.
BOOST_AUTO_TEST_CASE(a_lone_key_may_lose_only_the_sign_of_zero) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const Call call = one_head_windowed({0}, {-0.0, 0.0, -0.0}, dtype);
    const Tensor out = run(backend, call).out;
    for (const double value : values(out)) BOOST_TEST(value == 0);
    if (backend.name() == "reference") BOOST_TEST(same_bytes(out, call.v));
  });
  on_every_backend(Operation::merge, all_floating, [](Backend& backend, DType dtype) {
    const DType stat = statistics_dtype(dtype);
    const Tensor some = tensor({2, 1}, {-0.0, 0.0}, dtype), out = filled({2, 1}, nan, dtype);
    merge(backend, {some, filled({2}, 3, stat), filled({2, 1}, 7, dtype), filled({2}, -infinity, stat)}, {out, {}});
    BOOST_TEST(same_bytes(out, some));
  });
}

BOOST_AUTO_TEST_CASE(window_at_least_n_equals_causal) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call causal;
    causal.problem.mask = Mask::causal;
    const std::int64_t n = 70, dim = 8;
    causal.q = random_tensor({1, 2, n, dim}, 10, dtype);
    causal.k = random_tensor({1, 1, n, dim}, 11, dtype);
    causal.v = random_tensor({1, 1, n, dim}, 12, dtype);
    const Definition expected = by_definition(causal);
    check_near(run(backend, causal).out, expected.out, 64 + weight_slack(dtype));
    for (const double w : {70.0, 1e9, infinity}) {
      BOOST_TEST_CONTEXT("w=" << w) {
        Call call = causal;
        call.problem.mask = Mask::sparse;
        call.window = filled({1, 2, n}, w, statistics_dtype(dtype));
        const Result r = run(backend, call);
        check_near(r.out, expected.out, 64 + weight_slack(dtype));
        check_near(r.lse, expected.lse, 64);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(negative_and_nan_windows_are_empty) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const double w : {-1.0, -0.5, -1e30, -infinity, nan}) {
      BOOST_TEST_CONTEXT("w=" << w) {
        const Result r = run(backend, one_head_windowed({w}, counting(6), dtype));
        check_all(r.out, 0);
        check_all(r.lse, -infinity);
        check_all(r.dq, 0);
        check_all(r.dk, 0);
        check_all(r.dv, 0);
        check_all(r.dwindow, 0);
      }
    }
    Call absent = one_head(Mask::sparse, 6, counting(6), dtype);
    check_all(run(backend, absent).lse, -infinity);
  });
}

BOOST_AUTO_TEST_CASE(bidirectional_window_counts_both_sides) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (std::int64_t w = 0; w <= 7; ++w) {
      BOOST_TEST_CONTEXT("w=" << w) {
        const std::vector<double> v = counting(6);
        Call call = one_head_windowed({static_cast<double>(w)}, v, dtype);
        call.problem.bidirectional = true;
        std::vector<double> out;
        for (std::int64_t i = 0; i < 6; ++i)
          out.push_back(mean(v, std::max<std::int64_t>(0, i - w), std::min<std::int64_t>(6, i + w + 1)));
        check_near(run(backend, call).out, out);
      }
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
