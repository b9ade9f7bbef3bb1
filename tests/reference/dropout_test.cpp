// Dropout bits: Philox4x32-10 written out here a second time, from its definition, against the bits attention uses.
#include "internal/dropout.hpp"

#include <array>

#include "attention_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

/// Ten rounds of (c0,c1,c2,c3) -> (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)); the key grows by
/// the golden ratio and sqrt(3) - 1 between rounds.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> c, std::uint32_t k0, std::uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c[0], product1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(product0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

/// The factor of (b,h,i,j) by the contract's words.
double keep_factor(const Dropout& dropout, std::int64_t bh, std::int64_t i, std::int64_t j) {
  const auto words =
      philox({static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(bh),
              dropout.offset},
             static_cast<std::uint32_t>(dropout.seed & 0xffffffffu), static_cast<std::uint32_t>(dropout.seed >> 32));
  const double word = words[static_cast<std::size_t>(j % 4)];
  return word >= std::ceil(dropout.p * 4294967296.0) ? 1 / (1 - dropout.p) : 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(dropout)

// The published known answers: zero counter and key, and all bits set.
BOOST_AUTO_TEST_CASE(known_answers) {
  const std::array<std::uint32_t, 4> zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const std::array<std::uint32_t, 4> ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const std::uint32_t all = 0xffffffff;
  BOOST_TEST(philox({0, 0, 0, 0}, 0, 0) == zero, boost::test_tools::per_element());
  BOOST_TEST(philox({all, all, all, all}, all, all) == ones, boost::test_tools::per_element());
  const auto words = internal::dropout_words({0.5, 0, 0}, 0, 0, 3);
  for (std::size_t n = 0; n < 4; ++n) BOOST_TEST(words[n] == zero[n]);
}

BOOST_AUTO_TEST_CASE(factors_follow_the_contract) {
  const Dropout settings[] = {{0.1, 0x0123456789abcdefu, 7}, {0.5, 1, 0}, {0.999, ~std::uint64_t{0}, 0xffffffffu}};
  for (const Dropout& dropout : settings)
    for (const std::int64_t bh : {0, 1, 70000})
      for (const std::int64_t i : {0, 5, 100000})
        for (std::int64_t j = 0; j < 13; ++j)
          BOOST_TEST(internal::dropout_factor(dropout, bh, i, j) == keep_factor(dropout, bh, i, j));
}

// N = 64, v = I, p = 1/2, q = 0, full: out_ij is r_ij / 64, so 0 or 2/64, and dv_j sums the same r_ij.
BOOST_AUTO_TEST_CASE(output_shows_the_bits) {
  const Dropout dropout{0.5, 42, 9};
  AttentionCall call;
  call.problem.mask = Mask::full;
  call.problem.dropout = dropout;
  call.q = filled({2, 2, 64, 1}, 0, DType::f32);
  call.k = filled({2, 1, 64, 1}, 0, DType::f32);
  Values identity, expected, dv;
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 64; ++j) identity.push_back(i == j);
  call.v = tensor({2, 1, 64, 64}, identity, DType::f32);
  call.backward();
  for (int bh = 0; bh < 4; ++bh)
    for (int i = 0; i < 64; ++i)
      for (int j = 0; j < 64; ++j) expected.push_back(keep_factor(dropout, bh, i, j) / 64);
  for (int b = 0; b < 2; ++b)
    for (int j = 0; j < 64; ++j) {
      double sum = 0;
      for (int h = 0; h < 2; ++h)
        for (int i = 0; i < 64; ++i) sum += keep_factor(dropout, b * 2 + h, i, j) / 64;
      dv.insert(dv.end(), 64, sum);  // do = 1 in every column
    }
  check_same("out", call.out, expected);
  check_close("dv", call.dv, dv);
  check_same("lse", call.lse, Values(4 * 64, static_cast<float>(std::log(64.0))));  // not affected
  const AttentionCall first = call;
  call.backward();
  check_same("out again", call.out, first.out);
  check_same("dv again", call.dv, first.dv);
}

BOOST_AUTO_TEST_CASE(ends_of_the_range) {
  AttentionCall call = line_call(Mask::causal, {1, 2, 3}, {1, 2, 3}, {4, 5, 6});
  call.backward();
  const AttentionCall without = call;
  call.problem.dropout = Dropout{0, 1, 2};
  call.backward();
  check_same("p = 0", call.out, without.out);
  check_same("dk of p = 0", call.dk, without.dk);
  call.problem.dropout->p = 1;
  call.backward();
  check_same("p = 1", call.out, Values{0, 0, 0});
  check_same("lse of p = 1", call.lse, without.lse);
  check_close("dq of p = 1", call.dq, {0, 0, 0}, 0);
  check_close("dv of p = 1", call.dv, {0, 0, 0}, 0);
}

// A dropped value is not read: where it is NaN, exactly the rows that keep it become NaN.
BOOST_AUTO_TEST_CASE(dropped_values_are_not_read) {
  const Dropout dropout{0.5, 3, 4};
  AttentionCall call = line_call(Mask::full, Values(16, 0), Values(4, 0), {1, quiet_nan, 3, 4});
  call.problem.dropout = dropout;
  call.backward();
  const Values out = values_of(call.out), dq = values_of(call.dq);
  int kept = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    const bool keeps = keep_factor(dropout, 0, static_cast<std::int64_t>(i), 1) != 0;
    kept += keeps;
    BOOST_TEST(std::isnan(out[i]) == keeps);
    BOOST_TEST(std::isnan(dq[i]) == keeps);
  }
  BOOST_TEST(kept > 0);
  BOOST_TEST(kept < 16);
}

BOOST_AUTO_TEST_SUITE_END()
