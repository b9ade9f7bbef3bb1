// Two ways to say the same attention. Identities over the same keys in the same order hold bit for bit; those that
// change the order of a sum hold to a few units of double precision.
#include <tuple>

#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

constexpr double rounding = 1e-13;

AttentionCall random_call(const Shape& q, const Shape& k, std::int64_t dv, Mask mask, DType dtype = DType::f64) {
  AttentionCall call;
  call.problem.mask = mask;
  call.q = random(q, 1, dtype);
  call.k = random(k, 2, dtype);
  Shape v = k, out = q;
  v.back() = out.back() = dv;
  call.v = random(v, 3, dtype);
  call.dout = random(out, 4, dtype);
  out.pop_back();
  call.dlse = random(out, 5, statistics_dtype(dtype));
  return call;
}

/// A sparse call with every selector in use; float64, N tokens, lists of 3 per chunk of 4.
AttentionCall sparse_call(std::int64_t b, std::int64_t hq, std::int64_t hkv, std::int64_t n, DType dtype = DType::f64) {
  AttentionCall call = random_call({b, hq, n, 3}, {b, hkv, n, 3}, 4, Mask::sparse, dtype);
  const DType stat = statistics_dtype(dtype);
  call.problem.soft_edge = SoftEdge{1.5, 0.7};
  call.problem.landmark_chunk = 4;
  const std::int64_t lists = (n + 3) / 4;
  Values windows = values_of(random({b, hq, n}, 6)), slots;
  for (double& w : windows) w = 3 * w + 1;  // some negative
  std::mt19937 generator(7);
  for (std::int64_t s = 0; s < b * hq * lists * 3; ++s)
    slots.push_back(static_cast<double>(generator() % static_cast<unsigned>(n + 2)) - 1);
  call.window = tensor({b, hq, n}, windows, stat);
  call.landmarks = indices({b, hq, lists, 3}, slots);
  call.lambda = random({b, hq, lists, 3}, 8, stat);
  return call;
}

void check_forward_same(const AttentionCall& a, const AttentionCall& b) {
  check_same("out", a.out, b.out);
  check_same("lse", a.lse, b.lse);
}

/// Row-major copy of any view.
Tensor copy(const TensorView& view) {
  const Tensor result = like(view);
  copy_elements(view, result);
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(attention_identity)

BOOST_AUTO_TEST_CASE(window_that_reaches_the_start_is_causal) {
  AttentionCall causal = random_call({2, 4, 9, 3}, {2, 2, 11, 3}, 5, Mask::causal);
  AttentionCall sparse = causal;
  sparse.problem.mask = Mask::sparse;
  sparse.window = indices({2, 1, 9}, Values(18, 11));
  causal.backward();
  sparse.backward();
  check_forward_same(sparse, causal);
  check_same("dq", sparse.dq, causal.dq);
  check_same("dk", sparse.dk, causal.dk);
  check_same("dv", sparse.dv, causal.dv);
}

BOOST_AUTO_TEST_CASE(bidirectional_window_over_everything_is_full) {
  AttentionCall full = random_call({1, 2, 7, 3}, {1, 2, 5, 3}, 2, Mask::full);
  AttentionCall sparse = full;
  sparse.problem.mask = Mask::sparse;
  sparse.problem.bidirectional = true;
  sparse.window = indices({1, 1, 7}, Values(7, 7));
  full.backward();
  sparse.backward();
  check_forward_same(sparse, full);
  check_same("dk", sparse.dk, full.dk);
}

// Every key as a landmark, in any order, with any repeats, beside any window.
BOOST_AUTO_TEST_CASE(all_keys_as_landmarks_are_causal) {
  AttentionCall causal = random_call({1, 2, 6, 3}, {1, 1, 6, 3}, 4, Mask::causal);
  AttentionCall sparse = causal;
  sparse.problem.mask = Mask::sparse;
  sparse.window = tensor({1, 2, 6}, {-1, 0, 1, 2, 3, 9, quiet_nan, -1, 0, 0, 2.5, 1});
  sparse.landmarks = indices({1, 1, 1, 9}, {5, 3, 3, 0, 2, -1, 1, 4, 0});
  sparse.lambda = filled({1, 1, 1, 9}, 0);
  causal.backward();
  sparse.backward();
  check_close("out", sparse.out, values_of(causal.out), rounding);
  check_close("lse", sparse.lse, values_of(causal.lse), rounding);
  check_close("dq", sparse.dq, values_of(causal.dq), rounding);
  check_close("dk", sparse.dk, values_of(causal.dk), rounding);
  check_close("dv", sparse.dv, values_of(causal.dv), rounding);
}

// The reference attention against four nested loops that ask the definition of every (i, j).
BOOST_AUTO_TEST_CASE(sparse_call_by_membership) {
  for (const bool bidirectional : {false, true}) {
    AttentionCall call = sparse_call(2, 4, 2, 10);
    call.problem.bidirectional = bidirectional;
    call.forward();
    const Values q = values_of(call.q), k = values_of(call.k), v = values_of(call.v), w = values_of(call.window);
    const Values lists = values_of(call.landmarks), lambda = values_of(call.lambda);
    Values out, lse;
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t h = 0; h < 4; ++h)
        for (std::size_t i = 0; i < 10; ++i) {
          const double window = w[(b * 4 + h) * 10 + i];
          double total = 0, o[4] = {};
          for (std::size_t j = 0; j < 10; ++j) {
            const double d = static_cast<double>(i) - static_cast<double>(j), e = bidirectional ? std::fabs(d) : d;
            if (e < 0) continue;
            double beta = quiet_nan;
            if (e <= window) {
              beta = e <= window - 1.5 ? 0 : std::log(1 / (1 + std::exp(-(window - e) / 0.7)));
            } else {
              const std::size_t list = ((b * 4 + h) * 3 + i / 4) * 3;
              for (std::size_t slot = 3; slot-- > 0;)
                if (lists[list + slot] == static_cast<double>(j)) beta = lambda[list + slot];
            }
            if (std::isnan(beta)) continue;
            double s = beta;
            for (std::size_t c = 0; c < 3; ++c)
              s += q[((b * 4 + h) * 10 + i) * 3 + c] * k[((b * 2 + h / 2) * 10 + j) * 3 + c] / std::sqrt(3.0);
            total += std::exp(s);
            for (std::size_t c = 0; c < 4; ++c) o[c] += std::exp(s) * v[((b * 2 + h / 2) * 10 + j) * 4 + c];
          }
          lse.push_back(std::log(total));
          for (const double value : o) out.push_back(total == 0 ? 0 : value / total);
        }
    check_close("out", call.out, out, 1e-12);
    check_close("lse", call.lse, lse, 1e-12);
  }
}

BOOST_AUTO_TEST_CASE(merged_parts_are_the_whole) {
  AttentionCall whole = random_call({2, 2, 5, 3}, {2, 2, 8, 3}, 4, Mask::full), part = whole;
  whole.forward();
  // Eight parts of one key each, and an empty one, merged from the left.
  Tensor out = filled({2, 2, 5, 4}, quiet_nan), lse = filled({2, 2, 5}, -inf);
  for (std::int64_t j = 0; j < 8; ++j) {
    part.k = Tensor(whole.k.storage(), whole.k.view().narrow(2, j, 1));
    part.v = Tensor(whole.v.storage(), whole.v.view().narrow(2, j, 1));
    part.forward();
    merge(reference(), {out, lse, part.out, part.lse}, {out, lse});  // in place
  }
  check_close("out", out, values_of(whole.out), rounding);
  check_close("lse", lse, values_of(whole.lse), rounding);
}

// A pack gives each sequence the bytes it has alone, whatever lies beside it.
BOOST_AUTO_TEST_CASE(pack_equals_each_sequence_alone) {
  for (const DType dtype : floating_dtypes) {
    const AttentionCall padded = sparse_call(1, 4, 2, 12, dtype);  // the 12 rows hold sequences of 5, 0 and 7 tokens
    const auto rows = [](const Tensor& t) { return copy(t.view().select(0, 0).transpose(0, 1)); };
    AttentionCall pack = padded;
    pack.q = rows(padded.q);
    pack.k = rows(padded.k);
    pack.v = rows(padded.v);
    pack.window = rows(padded.window);
    pack.dout = rows(padded.dout);
    pack.dlse = rows(padded.dlse);
    pack.cu_q = pack.cu_k = indices({4}, {0, 5, 5, 12});
    Values slots;
    std::mt19937 generator(3);
    for (int n = 0; n < 3 * 4 * 2 * 3; ++n) slots.push_back(static_cast<double>(generator() % 8) - 1);
    pack.landmarks = indices({3, 4, 2, 3}, slots);
    pack.lambda = random({3, 4, 2, 3}, 9, statistics_dtype(dtype));
    pack.backward();
    for (const auto& [b, start, length] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{0, 0, 5}, {2, 5, 7}}) {
      AttentionCall alone;
      alone.problem = pack.problem;
      const auto sequence = [&, start = start, length = length](const Tensor& t) {
        return copy(t.view().narrow(2, start, length));
      };
      alone.q = sequence(padded.q);
      alone.k = sequence(padded.k);
      alone.v = sequence(padded.v);
      alone.window = sequence(padded.window);
      alone.dout = sequence(padded.dout);
      alone.dlse = sequence(padded.dlse);
      alone.landmarks = copy(pack.landmarks.view().narrow(0, b, 1));
      alone.lambda = copy(pack.lambda.view().narrow(0, b, 1));
      alone.backward();
      const auto check = [&, start = start, length = length](const std::string& what, const TensorView& packed,
                                                             const Tensor& single) {
        check_same(what, packed.narrow(0, start, length).transpose(0, 1), single.view().select(0, 0));
      };
      check("out", pack.out, alone.out);
      check("lse", pack.lse, alone.lse);
      check("dq", pack.dq, alone.dq);
      check("dk", pack.dk, alone.dk);
      check("dv", pack.dv, alone.dv);
      check("dwindow", pack.dwindow, alone.dwindow);
      check_same("dlambda", pack.dlambda.view().narrow(0, b, 1), alone.dlambda);
    }
  }
}

BOOST_AUTO_TEST_CASE(grouped_heads_equal_expanded_heads) {
  AttentionCall grouped = sparse_call(2, 6, 2, 9), expanded = grouped;
  const auto expand = [](const Tensor& t) {  // kv head h / 3 for every query head
    const TensorView& view = t;
    const Tensor result = filled({view.shape[0], 6, view.shape[2], view.shape[3]}, quiet_nan);
    for (std::int64_t h = 0; h < 6; ++h) copy_elements(view.select(1, h / 3), result.view().select(1, h));
    return result;
  };
  expanded.k = expand(grouped.k);
  expanded.v = expand(grouped.v);
  grouped.backward();
  expanded.backward();
  check_forward_same(grouped, expanded);
  check_same("dq", grouped.dq, expanded.dq);
  check_same("dwindow", grouped.dwindow, expanded.dwindow);
  check_same("dlambda", grouped.dlambda, expanded.dlambda);
  const auto sum_groups = [](const TensorView& view) {
    Values sums;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t g = 0; g < 2; ++g) {
        Values sum = values_of(view.select(0, b).select(0, 3 * g));
        for (std::int64_t h = 3 * g + 1; h < 3 * g + 3; ++h) {
          const Values next = values_of(view.select(0, b).select(0, h));
          for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += next[n];
        }
        sums.insert(sums.end(), sum.begin(), sum.end());
      }
    return sums;
  };
  check_close("dk", grouped.dk, sum_groups(expanded.dk), rounding);
  check_close("dv", grouped.dv, sum_groups(expanded.dv), rounding);
}

// One window and one list for all heads equal the same window and list written out per head, and gradients add up.
BOOST_AUTO_TEST_CASE(shared_selectors_equal_repeated_ones) {
  AttentionCall shared = sparse_call(2, 3, 3, 8), repeated = shared;
  const auto first_head = [](const Tensor& t) { return copy(t.view().narrow(1, 0, 1)); };
  const auto broadcast = [](const Tensor& t) {  // stride 0 over heads
    TensorView view = t;
    view.shape[1] = 3;
    view.strides[1] = 0;
    return Tensor(t.storage(), view);
  };
  shared.window = first_head(shared.window);
  shared.landmarks = first_head(shared.landmarks);
  shared.lambda = first_head(shared.lambda);
  repeated.window = broadcast(shared.window);
  repeated.landmarks = broadcast(shared.landmarks);
  repeated.lambda = broadcast(shared.lambda);
  shared.backward();
  repeated.backward();
  check_forward_same(shared, repeated);
  const auto sum_heads = [](const Tensor& t) {
    Values sums;
    for (std::int64_t b = 0; b < 2; ++b) {
      Values sum = values_of(t.view().select(0, b).select(0, 0));
      for (std::int64_t h = 1; h < 3; ++h) {
        const Values next = values_of(t.view().select(0, b).select(0, h));
        for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += next[n];
      }
      sums.insert(sums.end(), sum.begin(), sum.end());
    }
    return sums;
  };
  check_close("dwindow", shared.dwindow, sum_heads(repeated.dwindow), rounding);
  check_close("dlambda", shared.dlambda, sum_heads(repeated.dlambda), rounding);
}

// Any strides: [B,N,H,D] buffers, slices of one q-k-v buffer, reversed rows, a broadcast dout.
BOOST_AUTO_TEST_CASE(strides_change_no_bit) {
  for (const DType dtype : floating_dtypes) {
    AttentionCall strided = sparse_call(2, 2, 2, 9, dtype);
    const Tensor buffer = random({2, 9, 2, 3 + 3 + 4}, 11, dtype);  // q, k, v side by side
    const TensorView heads_first = buffer.view().transpose(1, 2);
    const auto reversed = [&](TensorView view) {  // tokens backwards: negative strides
      view.data = static_cast<char*>(view.data) +
                  (view.shape[2] - 1) * view.strides[2] * static_cast<std::int64_t>(size_of(view.dtype));
      view.strides[2] = -view.strides[2];
      return view;
    };
    strided.q = Tensor(buffer.storage(), reversed(heads_first.narrow(3, 0, 3)));
    strided.k = Tensor(buffer.storage(), heads_first.narrow(3, 3, 3));
    strided.v = Tensor(buffer.storage(), heads_first.narrow(3, 6, 4));
    const Tensor one_value = random({1}, 12, dtype);
    TensorView dout = one_value;
    dout.rank = 4;
    dout.shape = {2, 2, 9, 4};
    dout.strides = {};
    strided.dout = Tensor(one_value.storage(), dout);
    AttentionCall contiguous = strided;
    contiguous.q = copy(strided.q);
    contiguous.k = copy(strided.k);
    contiguous.v = copy(strided.v);
    contiguous.dout = copy(strided.dout);
    strided.backward();
    contiguous.backward();
    check_forward_same(strided, contiguous);
    check_same("dq", strided.dq, contiguous.dq);
    check_same("dk", strided.dk, contiguous.dk);
    check_same("dv", strided.dv, contiguous.dv);
    check_same("dwindow", strided.dwindow, contiguous.dwindow);
    check_same("dlambda", strided.dlambda, contiguous.dlambda);

    // Outputs of any strides too: [N,B,H,Dv] memory seen as [B,H,N,Dv].
    const Tensor tokens_first = filled({9, 2, 2, 4}, quiet_nan, dtype);
    const TensorView out = tokens_first.view().transpose(0, 1).transpose(1, 2);
    attention_forward(reference(), contiguous.problem, contiguous.inputs(), {out, {}});
    check_same("strided out", out, contiguous.out);
  }
}

// Decoding one token at a time against a cache, and prefill in two chunks with landmark_offset, give the full forward's
// bytes.
BOOST_AUTO_TEST_CASE(decode_and_chunked_prefill_equal_the_full_forward) {
  AttentionCall full = sparse_call(1, 2, 1, 11);
  full.forward();
  const auto part = [&](std::int64_t start, std::int64_t length, std::int64_t keys) {
    AttentionCall call;
    call.problem = full.problem;
    call.q = copy(full.q.view().narrow(2, start, length));
    call.k = full.k;  // the whole cache, of which `keys` are valid
    call.v = full.v;
    call.k_lengths = indices({1}, {static_cast<double>(keys)});
    call.window = copy(full.window.view().narrow(2, start, length));
    const std::int64_t first_list = start / 4, lists = (start + length + 3) / 4 - first_list;
    call.problem.landmark_offset = start % 4;
    call.landmarks = copy(full.landmarks.view().narrow(2, first_list, lists));
    call.lambda = copy(full.lambda.view().narrow(2, first_list, lists));
    call.forward();
    check_same("out", call.out, full.out.view().narrow(2, start, length));
    check_same("lse", call.lse, full.lse.view().narrow(2, start, length));
  };
  for (std::int64_t i = 0; i < 11; ++i) part(i, 1, i + 1);
  part(0, 6, 6);
  part(6, 5, 11);
}

// NaN in one sequence of the batch leaves the other's bytes alone.
BOOST_AUTO_TEST_CASE(sequences_do_not_see_each_other) {
  AttentionCall both = sparse_call(2, 2, 2, 7);
  both.backward();
  AttentionCall changed = both;
  changed.q = copy(both.q);
  changed.k = copy(both.k);
  changed.v = copy(both.v);
  for (Tensor* t : {&changed.q, &changed.k, &changed.v})
    for (std::int64_t n = t->view().size() / 2; n < t->view().size(); ++n) *t->view().at<double>(n) = quiet_nan;
  changed.backward();
  check_same("out", changed.out.view().select(0, 0), both.out.view().select(0, 0));
  check_same("dk", changed.dk.view().select(0, 0), both.dk.view().select(0, 0));
  check_same("dv", changed.dv.view().select(0, 0), both.dv.view().select(0, 0));
}

// Three runs of one call give the same bytes.
BOOST_AUTO_TEST_CASE(runs_repeat) {
  AttentionCall first = sparse_call(2, 4, 2, 33, DType::f32);
  first.problem.dropout = Dropout{0.3, 5, 6};
  AttentionCall again = first;
  first.backward();
  for (int n = 0; n < 3; ++n) {
    again.backward();
    check_forward_same(again, first);
    check_same("dk", again.dk, first.dk);
    check_same("dwindow", again.dwindow, first.dwindow);
  }
}

BOOST_AUTO_TEST_SUITE_END()
