// Faults of dropout bits.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "philox.hpp"
#include "support.hpp"

namespace dsalt::faults {

BOOST_AUTO_TEST_SUITE(dropout)

BOOST_AUTO_TEST_CASE(philox_known_answer) {
  const std::array<std::uint32_t, 4> expected = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  BOOST_TEST((philox({0, 0, 0, 0}, {0, 0}) == expected));
}

namespace {

struct Bits {
  Dropout dropout;
  bool keep(std::int64_t bh, std::int64_t i, std::int64_t j) const {
    const auto words =
        philox({static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(bh),
                dropout.offset},
               {static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)});
    return static_cast<double>(words[static_cast<std::size_t>(j % 4)]) >= std::ceil(dropout.p * 4294967296.0);
  }
};

/// [B,H,N,N], each matrix the identity.
Tensor identities(std::int64_t batch, std::int64_t heads, std::int64_t n, DType dtype) {
  std::vector<double> values;
  for (std::int64_t m = 0; m < batch * heads; ++m)
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) values.push_back(i == j ? 1 : 0);
  return tensor({batch, heads, n, n}, values, dtype);
}

}  // namespace

BOOST_AUTO_TEST_CASE(kept_weights_are_exactly_those_of_the_counter) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t n = 64, batch = 2, hq = 4, hkv = 2;
    for (const Dropout dropout : {Dropout{.5, 0, 0}, Dropout{.5, 1, 7}, Dropout{.5, 0x123456789abcdef0, 0xffffffff},
                                  Dropout{.25, 0xffffffffffffffff, 1}, Dropout{1e-3, 3, 0}}) {
      BOOST_TEST_CONTEXT("p=" << dropout.p << " seed=" << dropout.seed << " offset=" << dropout.offset) {
        Call call;
        call.problem.mask = Mask::full;
        call.problem.dropout = dropout;
        call.q = filled({batch, hq, n, n}, 0, dtype);
        call.k = filled({batch, hkv, n, n}, 0, dtype);
        call.v = identities(batch, hkv, n, dtype);
        call.dout = identities(batch, hq, n, dtype);
        const Result r = run(backend, call);
        std::vector<double> out, dv(static_cast<std::size_t>(batch * hkv * n * n), 0);
        for (std::int64_t bh = 0; bh < batch * hq; ++bh)
          for (std::int64_t i = 0; i < n; ++i)
            for (std::int64_t j = 0; j < n; ++j) {
              const double weight = Bits{dropout}.keep(bh, i, j) ? 1 / (64 * (1 - dropout.p)) : 0;
              out.push_back(weight);
              dv[static_cast<std::size_t>(((bh / 2) * n + j) * n + i)] += weight;  // two heads to a group
            }
        check_near(r.out, out, 1);
        check_near(r.dv, dv, 1);
        for (std::size_t at = 0; const double x : values(r.out)) BOOST_REQUIRE((x == 0) == (out[at++] == 0));
        check_near(r.lse, std::vector<double>(static_cast<std::size_t>(batch * hq * n), std::log(64)));
        BOOST_TEST(differing(run(backend, call), r) == "");  // recomputed
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(dropping_everything_gives_zeros) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
      Call call = one_head(mask, 5, {1, 2, 3, 4, 5}, dtype);
      if (mask == Mask::sparse) call.window = indices({1, 1, 5}, {2, 2, 2, 2, 2});
      call.problem.dropout = Dropout{1, 5, 6};
      const Result r = run(backend, call);
      check_all(r.out, 0);
      check_all(r.dv, 0);
      check_all(r.dq, 0);
      check_all(r.dk, 0);
      check_near(r.lse.view().narrow(2, 0, 1), {mask == Mask::full ? std::log(5) : 0});  // not touched by dropout
    }
  });
}

BOOST_AUTO_TEST_CASE(no_dropout_is_the_same_as_none) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call call;
    call.q = random_tensor({1, 2, 33, 8}, 55, dtype);
    call.k = random_tensor({1, 2, 33, 8}, 56, dtype);
    call.v = random_tensor({1, 2, 33, 8}, 57, dtype);
    call.dout = random_tensor({1, 2, 33, 8}, 58, dtype);
    const Result none = run(backend, call);
    call.problem.dropout = Dropout{0, 5, 6};
    BOOST_TEST(differing(run(backend, call), none) == "");
  });
}

BOOST_AUTO_TEST_CASE(packed_and_padded_calls_drop_the_same_weights) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    const std::int64_t batch = 3, heads = 2, n = 21, dim = 8;
    Call padded;
    padded.problem.dropout = Dropout{.4, 99, 3};
    padded.q = random_tensor({batch, heads, n, dim}, 59, dtype);
    padded.k = random_tensor({batch, heads, n, dim}, 60, dtype);
    padded.v = random_tensor({batch, heads, n, dim}, 61, dtype);
    padded.dout = random_tensor({batch, heads, n, dim}, 62, dtype);
    const auto pack = [&](const Tensor& t) {  // [B,H,N,D] -> [B*N,H,D]
      const Tensor packed = Tensor::empty({batch * n, heads, dim}, dtype);
      for (std::int64_t b = 0; b < batch; ++b)
        copy_elements(t.view().select(0, b).transpose(0, 1), packed.view().narrow(0, b * n, n));
      return packed;
    };
    Call packed = padded;
    packed.q = pack(padded.q), packed.k = pack(padded.k), packed.v = pack(padded.v), packed.dout = pack(padded.dout);
    packed.cu_seqlens_q = packed.cu_seqlens_k = indices({4}, {0, 21, 42, 63});
    const Result a = run(backend, padded), b = run(backend, packed);
    BOOST_TEST(same_bytes(pack(a.out), b.out));
    BOOST_TEST(same_bytes(pack(a.dq), b.dq));
    BOOST_TEST(same_bytes(pack(a.dk), b.dk));
    BOOST_TEST(same_bytes(pack(a.dv), b.dv));
  });
}

BOOST_AUTO_TEST_CASE(gradients_of_dropped_weights) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    // one query, four keys, equal logits: o = sum_j m_j v_j / 4 with m_j = 2 or 0; ds_j = (m_j v_j - o) / 4
    const Dropout dropout{.5, 4, 0};
    const std::vector<double> v = {1, 2, 4, 8};
    Call call = one_head(Mask::full, 1, v, dtype);
    call.problem.dropout = dropout;
    call.q = filled({1, 1, 1, 1}, 1, dtype);
    const Result r = run(backend, call);
    std::vector<double> m, dk, dv;
    double out = 0;
    for (std::int64_t j = 0; j < 4; ++j) m.push_back(Bits{dropout}.keep(0, 0, j) ? 2 : 0);
    for (std::size_t j = 0; j < 4; ++j) out += m[j] * v[j] / 4;
    for (std::size_t j = 0; j < 4; ++j) {
      dk.push_back((m[j] * v[j] - out) / 4);
      dv.push_back(m[j] / 4);
    }
    check_near(r.out, {out});
    check_near(r.dk, dk);
    check_near(r.dv, dv);
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
