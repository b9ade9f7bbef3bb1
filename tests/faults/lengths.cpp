// Faults of packs, of cache lengths and of many sequences or heads. Unless said otherwise B = H = D = 1, scale 1 and
// q = 0, so that all logits are equal and each output is the mean of the admitted values.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>

#include "definition.hpp"

namespace dsalt::faults {

BOOST_AUTO_TEST_SUITE(lengths)

BOOST_AUTO_TEST_CASE(empty_sequences_in_a_pack) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t hq = 9, hkv = 3, dim = 64;
    Call call;
    call.problem.mask = Mask::causal;
    call.cu_seqlens_q = indices({4}, {0, 1, 1, 2});
    call.cu_seqlens_k = indices({4}, {0, 3, 3, 8});
    call.q = filled({2, hq, dim}, 0, dtype);
    call.k = random_tensor({8, hkv, dim}, 13, dtype);
    call.v = random_tensor({8, hkv, dim}, 14, dtype);
    call.dout = filled({2, hq, dim}, 1, dtype);
    const Result r = run(backend, call);
    const std::vector<double> v = values(call.v);
    std::vector<double> out, lse, dv;
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, 3}, {3, 8}})
      for (std::int64_t h = 0; h < hq; ++h) {
        lse.push_back(std::log(static_cast<double>(end - begin)));
        for (std::int64_t t = 0; t < dim; ++t) {
          double sum = 0;
          for (std::int64_t j = begin; j < end; ++j) sum += v[static_cast<std::size_t>((j * hkv + h / 3) * dim + t)];
          out.push_back(sum / static_cast<double>(end - begin));
        }
      }
    for (std::int64_t j = 0; j < 8; ++j)
      for (std::int64_t n = 0; n < hkv * dim; ++n) dv.push_back(3.0 / (j < 3 ? 3 : 5));  // three heads of each group
    check_near(r.out, out);
    check_near(r.lse, lse);
    check_near(r.dv, dv);
    check_all(r.dk, 0);
  });
}

BOOST_AUTO_TEST_CASE(keys_of_a_sequence_without_queries_have_zero_gradients) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const Mask mask : {Mask::full, Mask::causal}) {
      Call call;
      call.problem.mask = mask;
      call.cu_seqlens_q = indices({3}, {0, 0, 1});
      call.cu_seqlens_k = indices({3}, {0, 2, 5});
      call.q = random_tensor({1, 2, 4}, 15, dtype);
      call.k = random_tensor({5, 2, 4}, 16, dtype);
      call.v = random_tensor({5, 2, 4}, 17, dtype);
      call.dout = random_tensor({1, 2, 4}, 18, dtype);
      const Result r = run(backend, call);
      check_all(r.dk.view().narrow(0, 0, 2), 0);
      check_all(r.dv.view().narrow(0, 0, 2), 0);
      for (const double x : values(r.dv.view().narrow(0, 2, 3))) BOOST_TEST(std::isfinite(x));
    }
  });
}

BOOST_AUTO_TEST_CASE(pack_of_65537_sequences_most_of_them_empty) {
  on_every_backend(Operation::attention, {DType::f32}, [](Backend& backend, DType dtype) {
    // sequence s has one token when s is a multiple of 1000 or the last, else none
    std::vector<std::int32_t> cu = {0};
    for (int s = 0; s < 65537; ++s) cu.push_back(cu.back() + (s % 1000 == 0 || s == 65536 ? 1 : 0));
    const std::int64_t rows = cu.back();
    Call call;
    call.cu_seqlens_q = call.cu_seqlens_k = indices({65538}, cu);
    call.q = call.k = filled({rows, 1, 1}, 0, dtype);
    call.v = tensor({rows, 1, 1}, counting(rows), dtype);
    call.dout = filled({rows, 1, 1}, 1, dtype);
    const Result r = run(backend, call);
    BOOST_TEST(same_bytes(r.out, call.v));
    BOOST_TEST(same_bytes(r.dv, call.dout));
    check_all(r.lse, 0);
  });
}

BOOST_AUTO_TEST_CASE(heads_and_batches_past_65536) {
  on_every_backend(Operation::attention, {DType::f32}, [](Backend& backend, DType dtype) {
    const std::int64_t many = 65537;
    for (const bool heads : {true, false}) {
      const Shape shape = heads ? Shape{1, many, 2, 1} : Shape{many, 1, 2, 1};
      Call call;
      call.q = call.k = filled(shape, 0, dtype);
      call.v = tensor(shape, counting(2 * many), dtype);
      call.dout = filled(shape, 1, dtype);
      const Result r = run(backend, call);
      std::vector<double> out, dv;
      for (std::int64_t n = 0; n < many; ++n) {
        out.insert(out.end(), {static_cast<double>(2 * n), static_cast<double>(2 * n) + .5});
        dv.insert(dv.end(), {1.5, .5});
      }
      check_near(r.out, out, 2);
      check_near(r.dv, dv);
    }
  });
}

BOOST_AUTO_TEST_CASE(buffer_longer_than_cu_seqlens) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t rows = 946, used = 944, hq = 2, hkv = 1, dim = 8, chunk = 100, lists = 6, k = 3;
    for (const Mask mask : {Mask::causal, Mask::sparse}) {
      BOOST_TEST_CONTEXT("mask " << name_of(mask)) {
        // `exact` ends at row 944; `longer` has two more rows of NaN
        const auto cut = [&](const Tensor& t) { return contiguous(t.view().narrow(0, 0, used)); };
        const auto poison = [&](const Tensor& t) {
          const Tensor nans =
              filled({t.view().shape.begin(), t.view().shape.begin() + t.view().rank}, nan, t.view().dtype);
          copy_elements(t.view().narrow(0, 0, used), nans.view().narrow(0, 0, used));
          return nans;
        };
        const DType stat = statistics_dtype(dtype);
        Call longer;
        longer.problem.mask = mask;
        longer.cu_seqlens_q = longer.cu_seqlens_k = indices({4}, {0, 144, 432, 944});
        longer.q = poison(random_tensor({rows, hq, dim}, 19, dtype));
        longer.k = poison(random_tensor({rows, hkv, dim}, 20, dtype));
        longer.v = poison(random_tensor({rows, hkv, dim}, 21, dtype));
        longer.dout = poison(random_tensor({rows, hq, dim}, 22, dtype));
        longer.dlse = poison(random_tensor({rows, hq}, 23, stat));
        if (mask == Mask::sparse) {
          longer.problem.landmark_chunk = chunk;
          longer.problem.soft_edge = SoftEdge{4, 2};
          longer.window = poison(random_tensor({rows, hq}, 24, stat, 40));
          std::vector<std::int32_t> list;
          for (std::int64_t n = 0; n < 3 * lists * k; ++n) list.push_back(static_cast<std::int32_t>(n * 37 % 150) - 5);
          longer.landmarks = indices({3, 1, lists, k}, list);
          longer.landmark_log_weight = random_tensor({3, 1, lists, k}, 25, stat);
        }
        Call exact = longer;
        exact.q = cut(longer.q), exact.k = cut(longer.k), exact.v = cut(longer.v);
        exact.dout = cut(longer.dout), exact.dlse = cut(longer.dlse);
        if (longer.window.present()) exact.window = cut(longer.window);

        const double mark = 3.25;  // what unwritten rows must still hold
        const Result whole = run(backend, longer, mark), part = run(backend, exact, mark);
        const std::pair<Tensor, Tensor> pairs[] = {{whole.out, part.out}, {whole.lse, part.lse},
                                                   {whole.dq, part.dq},   {whole.dk, part.dk},
                                                   {whole.dv, part.dv},   {whole.dwindow, part.dwindow}};
        for (const auto& [with_tail, without] : pairs) {
          if (!with_tail.present()) continue;
          BOOST_TEST(same_bytes(with_tail.view().narrow(0, 0, used), without));
          check_all(with_tail.view().narrow(0, used, rows - used), mark);
          for (const double x : values(without)) BOOST_REQUIRE(!std::isnan(x));
        }
        BOOST_TEST(same_bytes(whole.dlandmark_log_weight, part.dlandmark_log_weight));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(keys_past_k_lengths_are_never_read) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t batch = 3, hq = 2, nq = 5, nk = 40, dim = 8;
    const std::int32_t lengths[] = {40, 17, 0};
    for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
      BOOST_TEST_CONTEXT("mask " << name_of(mask)) {
        Call zeros;
        zeros.problem.mask = mask;
        zeros.k_lengths = indices({batch}, {lengths[0], lengths[1], lengths[2]});
        zeros.q = random_tensor({batch, hq, nq, dim}, 26, dtype);
        zeros.k = random_tensor({batch, 1, nk, dim}, 27, dtype);
        zeros.v = random_tensor({batch, 1, nk, dim}, 28, dtype);
        zeros.dout = random_tensor({batch, hq, nq, dim}, 29, dtype);
        if (mask == Mask::sparse) {
          zeros.window = filled({batch, 1, nq}, 6, statistics_dtype(dtype));
          // 16 is the last key of the second sequence, 17 and 39 do not exist there
          zeros.landmarks = indices({batch, 1, 1, 4}, {0, 17, 39, 2, 0, 17, 39, 16, 0, 17, 39, 2});
        }
        Call nans = zeros;
        nans.k = contiguous(zeros.k);
        nans.v = contiguous(zeros.v);
        for (std::int64_t b = 0; b < batch; ++b)
          for (const Tensor& t : {nans.k, nans.v}) {
            const TensorView tail = t.view().select(0, b).narrow(1, lengths[b], nk - lengths[b]);
            copy_elements(filled({1, nk - lengths[b], dim}, nan, dtype), tail);
          }
        const Result a = run(backend, zeros), b = run(backend, nans);
        BOOST_TEST(differing(a, b) == "");
        for (std::int64_t n = 0; n < batch; ++n)
          for (const Tensor& t : {b.dk, b.dv})
            if (lengths[n] < nk) check_all(t.view().select(0, n).narrow(1, lengths[n], nk - lengths[n]), 0);
        check_all(b.out.view().select(0, 2), 0);
        check_all(b.lse.view().select(0, 2), -infinity);
      }
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
