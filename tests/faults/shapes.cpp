// Faults of tiles, head sizes, layouts and cross lengths. Unless said otherwise B = H = D = 1, scale 1 and q = 0, so
// that all logits are equal and each output is the mean of the admitted values.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>

#include "definition.hpp"

namespace dsalt::faults {

BOOST_AUTO_TEST_SUITE(shapes)

BOOST_AUTO_TEST_CASE(partial_tiles) {
  on_every_backend(Operation::attention, {DType::f64, DType::f32}, [](Backend& backend, DType dtype) {
    for (std::int64_t n = 1; n <= 200; ++n) {  // 1, 15, 17, 63, 65, 127, 129, 137, 192 and all their neighbours
      BOOST_TEST_CONTEXT("N=" << n) {
        Call call = one_head(Mask::full, n, counting(n), dtype);
        call.dout = {};
        const Result full = run(backend, call);
        check_near(full.out, std::vector<double>(static_cast<std::size_t>(n), static_cast<double>(n - 1) / 2));
        check_near(full.lse, std::vector<double>(static_cast<std::size_t>(n), std::log(static_cast<double>(n))));
        call.problem.mask = Mask::causal;
        std::vector<double> half = counting(n);
        for (double& x : half) x /= 2;
        check_near(run(backend, call).out, half);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(partial_tiles_backward) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const std::int64_t n : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 137, 192}) {
      BOOST_TEST_CONTEXT("N=" << n) {
        std::vector<double> v(static_cast<std::size_t>(n), 2), dv(static_cast<std::size_t>(n), 1), dlse = dv;
        Call call = one_head(Mask::full, n, v, dtype);
        call.q = filled({1, 1, n, 1}, 1, dtype);  // k stays 0: logits equal, dk = sum_i P_ij dlse_i q_i = 1
        call.dlse = filled({1, 1, n}, 1, statistics_dtype(dtype));
        const Result r = run(backend, call);
        check_near(r.out, v);
        check_near(r.dv, dv, 64);
        check_near(r.dk, dlse, 64);
        check_all(r.dq, 0);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(head_sizes) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::pair<std::int64_t, double> table[] = {{40, .999960},  {80, .999220},  {96, .998546},
                                                     {128, .996519}, {192, .990232}, {256, .982014}};
    std::vector<std::int64_t> sizes = {320, 512};
    for (std::int64_t d = 1; d <= 80; ++d) sizes.push_back(d);
    for (const auto& [d, from_table] : table) {
      BOOST_REQUIRE_SMALL(1 / (1 + std::exp(-64 / std::sqrt(static_cast<double>(d)))) - from_table, 1e-6);
      sizes.push_back(d);
    }
    for (const std::int64_t d : sizes) {
      BOOST_TEST_CONTEXT("D=" << d) {
        std::vector<double> last(static_cast<std::size_t>(d), 0), keys(static_cast<std::size_t>(2 * d), 0);
        last.back() = keys.back() = 8;
        Call call;
        call.problem.mask = Mask::full;  // scale left out: 1/sqrt(D)
        call.q = tensor({1, 1, 1, d}, last, dtype);
        call.k = tensor({1, 1, 2, d}, keys, dtype);
        call.v = tensor({1, 1, 2, 1}, {0, 1}, dtype);
        const double logit = 64 / std::sqrt(static_cast<double>(d));
        try {
          const Result r = run(backend, call);
          check_near(r.out, {1 / (1 + std::exp(-logit))}, 64);
          check_near(r.lse, {logit + std::log1p(std::exp(-logit))});
        } catch (const Unsupported& refusal) {
          BOOST_TEST(d > 256, "D up to 256 must work: " << refusal.what());
          BOOST_TEST(std::string(refusal.what()).find(std::to_string(d)) != std::string::npos,
                     "a refusal names the head size: " << refusal.what());
        }
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(strided_views) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t n = 84, heads = 3, dim = 64;
    // one buffer [84 tokens, 3 of q k v, 3 heads, 64], seen as three [1,H,N,D] views
    const Tensor buffer = random_tensor({n, 3, heads, dim}, 30, dtype);
    const auto part = [&](std::int64_t which) {
      TensorView view = buffer.view().select(1, which).transpose(0, 1);  // [H,N,D]
      view.rank = 4;
      view.shape = {1, heads, n, dim};
      view.strides = {buffer.view().size(), view.strides[0], view.strides[1], view.strides[2]};
      return Tensor(buffer.storage(), view);
    };
    const Tensor one = filled({1}, 0.75, dtype);
    TensorView broadcast = one;
    broadcast.rank = 4;
    broadcast.shape = {1, heads, n, dim};
    broadcast.strides = {0, 0, 0, 0};
    for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
      BOOST_TEST_CONTEXT("mask " << name_of(mask)) {
        Call strided;
        strided.problem.mask = mask;
        strided.q = part(0), strided.k = part(1), strided.v = part(2);
        strided.dout = Tensor(one.storage(), broadcast);
        if (mask == Mask::sparse) {
          const Tensor w = filled({1}, 9.5, statistics_dtype(dtype));
          TensorView everywhere = w;
          everywhere.rank = 3;
          everywhere.shape = {1, heads, n};
          everywhere.strides = {0, 0, 0};
          strided.window = Tensor(w.storage(), everywhere);
          const Tensor lists = indices({6, 2, 7}, [] {
            std::vector<std::int32_t> list;
            for (std::int32_t i = 0; i < 84; ++i) list.push_back(i * 31 % 84);
            return list;
          }());
          TensorView view = lists;  // every second list of a transposed table, K backwards
          view.rank = 4;
          view.shape = {1, 3, 4, 2};
          view.strides = {0, 28, 2, -1};
          view.data = lists.view().at<std::int32_t>(1);
          strided.landmarks = Tensor(lists.storage(), view);
          strided.problem.landmark_chunk = 21;
        }
        Call packed = strided;
        for (Tensor* t : {&packed.q, &packed.k, &packed.v, &packed.dout, &packed.window, &packed.landmarks})
          if (t->present()) *t = contiguous(*t);
        const Result plain = run(backend, packed);
        BOOST_TEST(differing(run(backend, strided), plain) == "");

        // outputs as views into [B,N,H,D] buffers
        const Tensor out = filled({1, n, heads, dim}, nan, dtype),
                     lse = filled({1, n, heads}, nan, statistics_dtype(dtype));
        attention_forward(backend, strided.problem, strided.inputs(),
                          {out.view().transpose(1, 2), lse.view().transpose(1, 2)});
        BOOST_TEST(same_bytes(out.view().transpose(1, 2), plain.out));
        BOOST_TEST(same_bytes(lse.view().transpose(1, 2), plain.lse));
        const Tensor dq = filled({1, n, heads, dim}, nan, dtype), dk = filled({1, dim, n, heads}, nan, dtype),
                     dv = filled({1, n, heads, dim}, nan, dtype);
        attention_backward(backend, strided.problem, strided.inputs(),
                           {out.view().transpose(1, 2), lse.view().transpose(1, 2), strided.dout, {}},
                           {dq.view().transpose(1, 2), dk.view().transpose(1, 3), dv.view().transpose(1, 2), {}, {}});
        BOOST_TEST(same_bytes(dq.view().transpose(1, 2), plain.dq));
        BOOST_TEST(same_bytes(dk.view().transpose(1, 3), plain.dk));
        BOOST_TEST(same_bytes(dv.view().transpose(1, 2), plain.dv));
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(an_output_that_overlaps_itself_is_refused) {
  on_every_backend(Operation::attention, {DType::f32}, [](Backend& backend, DType dtype) {
    const Call call = one_head(Mask::full, 2, {1, 2}, dtype);
    const Tensor out = filled({1, 1, 2, 1}, 0, dtype);
    TensorView overlapping = out;
    overlapping.strides[2] = 0;
    BOOST_CHECK_THROW(attention_forward(backend, call.problem, call.inputs(), {overlapping, {}}), InvalidArgument);
  });
}

BOOST_AUTO_TEST_CASE(cross_lengths) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    check_near(run(backend, one_head(Mask::full, 3, counting(7), dtype)).out, {3, 3, 3});
    check_near(run(backend, one_head(Mask::full, 7, counting(3), dtype)).out, std::vector<double>(7, 1));
  });
}

BOOST_AUTO_TEST_CASE(cross_lengths_gradients_match_finite_differences) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const auto& [nq, nk] : {std::pair<std::int64_t, std::int64_t>{3, 7}, {7, 3}}) {
      for (const Mask mask : {Mask::full, Mask::causal}) {
        BOOST_TEST_CONTEXT("Nq=" << nq << " Nk=" << nk << " mask " << name_of(mask)) {
          Call call;
          call.problem.mask = mask;
          call.q = random_tensor({1, 2, nq, 16}, 31, dtype);
          call.k = random_tensor({1, 1, nk, 16}, 32, dtype);
          call.v = random_tensor({1, 1, nk, 32}, 33, dtype);
          call.dout = random_tensor({1, 2, nq, 32}, 34, dtype);
          call.dlse = random_tensor({1, 2, nq}, 35, statistics_dtype(dtype));
          const Result r = run(backend, call);
          Call exact = call;
          for (Tensor* t : {&exact.q, &exact.k, &exact.v}) {
            const std::vector<double> x = values(*t);
            *t = tensor({t->view().shape.begin(), t->view().shape.begin() + 4}, x, DType::f64);
          }
          const std::vector<double> dout = values(call.dout), dlse = values(call.dlse);
          check_near(r.out, by_definition(exact).out, 64 + weight_slack(dtype));
          // differences are good to about 1e-9; 16-bit types may also use their rounded out in delta
          const double u_acc = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
          const double slack = (1e-8 + 32 * unit_roundoff(dtype)) / u_acc;
          check_near(r.dq, finite_differences(exact, exact.q, dout, dlse), slack);
          check_near(r.dk, finite_differences(exact, exact.k, dout, dlse), slack);
          check_near(r.dv, finite_differences(exact, exact.v, dout, dlse), slack);
        }
      }
    }
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
