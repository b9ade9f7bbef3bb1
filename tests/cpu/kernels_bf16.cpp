// The kernels on bfloat16 pairs against float32 sums of the same bfloat16 numbers. Skipped where the processor has
// none.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "dsalt/dtype.hpp"
#include "kernel_scope.hpp"
#include "kernels_support.hpp"

using namespace dsalt;
using namespace dsalt::test;
using internal::Kernels;
using internal::tile;

namespace {

using Bits = std::vector<std::uint16_t>;

/// The tables that have these kernels.
std::vector<const Kernels*> pair_tables() {
  std::vector<const Kernels*> list;
  for (const Kernels* kernels : tables())
    if (kernels->scores_pairs) list.push_back(kernels);
  if (list.empty()) BOOST_TEST_MESSAGE("this machine has no AVX-512-BF16");
  return list;
}

Bits normal_bits(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  Bits bits(n);
  for (std::uint16_t& x : bits) x = to_bfloat16(distribution(generator)).bits;
  return bits;
}

float value(std::uint16_t bits) { return to_float(bfloat16{bits}); }
float low(std::uint32_t pair) { return value(static_cast<std::uint16_t>(pair)); }
float high(std::uint32_t pair) { return value(static_cast<std::uint16_t>(pair >> 16)); }

std::vector<const std::uint16_t*> row_pointers(const Bits& data, std::size_t width) {
  std::vector<const std::uint16_t*> rows;
  for (std::size_t at = 0; at + width <= data.size(); at += width) rows.push_back(data.data() + at);
  return rows;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_kernels_bf16)

BOOST_AUTO_TEST_CASE(only_the_tables_named_for_it_have_them) {
  for (const Kernels* kernels : tables()) {
    const std::string name = kernels->name;
    BOOST_TEST((kernels->scores_pairs != nullptr) == (name == "AVX-512-BF16" || name == "AMX-BF16"));
    BOOST_TEST((kernels->enter != nullptr) == (name == "AMX-BF16"));
  }
}

BOOST_AUTO_TEST_CASE(scores) {
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    for (const std::size_t pairs : {1u, 7u, 32u, 33u, 64u, 100u}) {
      const Bits queries = normal_bits(tile * 2 * pairs, 1), keys = normal_bits(tile * 2 * pairs, 2);
      const auto query_rows = row_pointers(queries, 2 * pairs), key_rows = row_pointers(keys, 2 * pairs);
      const std::vector<const void*> pointers(query_rows.begin(), query_rows.end());
      std::vector<std::uint32_t> packed(pairs * tile);
      kernels->transpose(pointers.data(), tile, static_cast<std::int64_t>(pairs), packed.data());
      std::vector<float> out(tile * tile);
      std::vector<float> highest(tile, -std::numeric_limits<float>::infinity());
      kernels->scores_pairs(packed.data(), key_rows.data(), tile, static_cast<std::int64_t>(pairs), 0.5f, 0, tile,
                            out.data(), highest.data());
      for (std::size_t lane = 0; lane < tile; ++lane) {
        float largest = out[lane];
        for (std::size_t r = 1; r < tile; ++r) largest = std::max(largest, out[r * tile + lane]);
        BOOST_TEST(highest[lane] == largest);
      }
      for (std::size_t r = 0; r < tile; ++r)
        for (std::size_t lane = 0; lane < tile; ++lane) {
          double sum = 0, size = 0;
          for (std::size_t c = 0; c < 2 * pairs; ++c) {
            const double term =
                static_cast<double>(value(key_rows[r][c])) * static_cast<double>(value(query_rows[lane][c]));
            sum += term;
            size += std::fabs(term);
          }
          BOOST_REQUIRE(std::fabs(static_cast<double>(out[r * tile + lane]) - 0.5 * sum) <= 4 * 0x1p-24 * size);
        }
      for (const int rows : {1, 2, 3, 7, 8})  // rows by themselves, keys in the lanes
        for (const int count : {1, 16, 17, 33, 61, 64}) {
          const std::size_t first = std::min<std::size_t>(3, tile - static_cast<std::size_t>(count));
          std::vector<float> by_row(static_cast<std::size_t>(rows) * tile);
          kernels->row_scores_pairs(pointers.data() + 41, rows, key_rows.data() + first, count,
                                    static_cast<std::int64_t>(pairs), 0.5f, 0, by_row.data());
          for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
            for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n)
              BOOST_TEST(by_row[r * tile + n] == out[(n + first) * tile + 41 + r]);
        }
      for (const int count : {1, 5, 13}) {  // an element's bits do not depend on what else the call covers
        std::vector<float> part(tile * tile);
        kernels->scores_pairs(packed.data(), key_rows.data() + 3, count, static_cast<std::int64_t>(pairs), 0.5f, 16, 48,
                              part.data(), nullptr);
        int wrong = 0;
        for (int r = 0; r < count; ++r)
          for (int lane = 16; lane < 48; ++lane)
            wrong +=
                part[static_cast<std::size_t>(r * tile + lane)] != out[static_cast<std::size_t>((r + 3) * tile + lane)];
        BOOST_TEST(wrong == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_over_pairs_of_rows) {
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    for (const std::size_t width : {16u, 48u, 64u, 128u})
      for (const int terms : {1, 2, 7, 64}) {
        const Bits data = normal_bits(tile * width, 3);
        const auto rows = row_pointers(data, width);
        std::vector<std::uint32_t> values(tile / 2 * width), weights(tile / 2 * tile);
        BOOST_TEST(!kernels->interleave(rows.data(), terms, static_cast<std::int64_t>(width), values.data()));
        std::vector<float> w(tile * tile);
        for (std::size_t n = 0; n < w.size(); ++n) w[n] = std::fabs(std::sin(static_cast<float>(n)));
        kernels->pair_rows(w.data(), terms, 0, tile, weights.data());
        std::vector<float> sums(2 * tile * width, 0), compensated = sums;
        std::vector<float*> out, out_compensated;
        for (std::size_t r = 0; r < tile; ++r) {
          out.push_back(sums.data() + r * width);
          out_compensated.push_back(compensated.data() + r * width);
        }
        const auto columns = static_cast<std::int64_t>(width);
        kernels->accumulate_pairs(weights.data(), tile, 1, values.data(), 0, (terms + 1) / 2, columns, out.data(),
                                  tile);
        kernels->accumulate_pairs_compensated(weights.data(), tile, 1, values.data(), 0, (terms + 1) / 2, columns, 1,
                                              out_compensated.data(), tile * columns, tile, terms == 7);
        BOOST_TEST((sums == compensated));
        // Rows 9 to 13 by themselves, which pair the values as they come.
        constexpr std::size_t first = 9, count = 5;
        std::vector<std::uint32_t> by_row(count * tile / 2);
        for (std::size_t r = 0; r < count; ++r)
          for (std::size_t t = 0; t < tile / 2; ++t) by_row[r * tile / 2 + t] = weights[t * tile + first + r];
        std::vector<float> again(count * width, 0);
        std::vector<float*> out_again;
        for (std::size_t r = 0; r < count; ++r) out_again.push_back(again.data() + r * width);
        BOOST_TEST(!kernels->row_accumulate_pairs(by_row.data(), tile / 2, rows.data(), 0, terms, columns, 0,
                                                  out_again.data(), static_cast<int>(count)));
        for (std::size_t n = 0; n < again.size(); ++n) BOOST_TEST(again[n] == sums[first * width + n]);
        for (std::size_t r = 0; r < tile; ++r)
          for (std::size_t c = 0; c < width; ++c) {
            double sum = 0, size = 0;
            for (std::size_t t = 0; t < static_cast<std::size_t>(terms); ++t) {
              const double term =
                  static_cast<double>(to_float(to_bfloat16(w[t * tile + r]))) * static_cast<double>(value(rows[t][c]));
              sum += term;
              size += std::fabs(term);
            }
            BOOST_REQUIRE(std::fabs(static_cast<double>(sums[r * width + c]) - sum) <= 4 * 0x1p-24 * size);
          }
      }
  }
}

// Sums of a tile's pairs have the same bits whichever of them a call begins and ends with, as long as the others have
// weight 0.
BOOST_AUTO_TEST_CASE(sums_do_not_depend_on_where_a_call_begins) {
  constexpr std::size_t width = 80, all = tile / 2, count = 21;
  constexpr auto columns = static_cast<std::int64_t>(width);
  constexpr std::int64_t lo_offset = count * columns;
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    const Bits data = normal_bits(tile * width, 5);
    const auto rows = row_pointers(data, width);
    std::vector<std::uint32_t> values(all * width);
    BOOST_TEST(!kernels->interleave(rows.data(), tile, columns, values.data()));
    for (const float size : {1.0f, 0x1p-125f})  // sums of the small ones fall below 2^-126
      for (const auto& [first, end] : {std::pair<int, int>{2, 32}, {14, 30}, {16, 32}, {18, 21}, {0, 9}, {6, 26}}) {
        std::vector<float> w(tile * tile);
        for (int n = 2 * first * tile; n < 2 * end * tile; ++n)
          w[static_cast<std::size_t>(n)] = size * std::cos(static_cast<float>(n));
        std::vector<std::uint32_t> weights(all * tile), by_row(tile * all);
        kernels->pair_rows(w.data(), tile, 0, tile, weights.data());
        for (std::size_t r = 0; r < tile; ++r)
          for (std::size_t t = 0; t < all; ++t) by_row[r * all + t] = weights[t * tile + r];
        const auto sum = [&](auto&& add) {
          std::vector<float> sums(2 * count * width, size == 1 ? 0.25f : 0.0f);
          std::vector<float*> out;
          for (std::size_t r = 0; r < count; ++r) out.push_back(sums.data() + r * width);
          add(out.data());
          return sums;
        };
        const int terms = end - first;
        const std::uint32_t* from = values.data() + static_cast<std::size_t>(first) * width;
        const auto right = sum([&](float* const* out) {
          kernels->accumulate_pairs(weights.data(), tile, 1, values.data(), 0, tile / 2, columns, out, count);
        });
        BOOST_TEST((right == sum([&](float* const* out) {
                      kernels->accumulate_pairs(weights.data() + first * tile, tile, 1, from, first, terms, columns,
                                                out, count);
                    })));
        BOOST_TEST((right == sum([&](float* const* out) {
                      kernels->accumulate_pairs(by_row.data() + first, 1, tile / 2, from, first, terms, columns, out,
                                                count);
                    })));
        BOOST_TEST((right == sum([&](float* const* out) {
                      for (int begin = first, next; begin < end; begin = next) {
                        next = std::min(end, begin / 16 * 16 + 16);
                        for (int r = 0, few = 1; r < static_cast<int>(count);
                             r += few++)  // 1, 2, ..., 6 rows at a time
                          BOOST_TEST(!kernels->row_accumulate_pairs(by_row.data() + r * tile / 2 + begin, tile / 2,
                                                                    rows.data() + 2 * begin, begin, 2 * (next - begin),
                                                                    columns, 0, out + r, few));
                      }
                    })));
        for (const bool is_first : {false, true}) {
          const auto compensated = sum([&](float* const* out) {
            kernels->accumulate_pairs_compensated(weights.data(), tile, 1, values.data(), 0, tile / 2, columns, 0.5f,
                                                  out, lo_offset, count, is_first);
          });
          BOOST_TEST((compensated == sum([&](float* const* out) {
                        kernels->accumulate_pairs_compensated(by_row.data() + first, 1, tile / 2, from, first, terms,
                                                              columns, 0.5f, out, lo_offset, count, is_first);
                      })));
        }
      }
  }
}

BOOST_AUTO_TEST_CASE(scopes_nest) {
  for (const Kernels* kernels : pair_tables()) {
    const std::vector<std::uint32_t> ones(tile * tile / 2, 0x3f803f80);
    const auto sum = [&] {
      float sums[16] = {};
      float* const out[] = {sums};
      kernels->accumulate_pairs(ones.data(), 1, tile / 2, ones.data(), 0, tile / 2, 16, out, 1);
      return sums[9];
    };
    const internal::KernelScope outer(*kernels, true);
    BOOST_TEST(sum() == static_cast<float>(tile));
    {
      const internal::KernelScope inner(*kernels, true);
      BOOST_TEST(sum() == static_cast<float>(tile));
    }
    BOOST_TEST(sum() == static_cast<float>(tile));
  }
}

BOOST_AUTO_TEST_CASE(pairs_round_as_dtype_does) {
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    std::vector<float> s(tile * tile);
    for (std::size_t n = 0; n < s.size(); ++n) s[n] = std::exp2(-static_cast<float>(n % 977) / 40);
    std::vector<std::uint32_t> rows(tile / 2 * tile, 1), lanes(tile * tile / 2, 1);
    kernels->pair_rows(s.data(), tile - 1, 0, tile, rows.data());
    BOOST_TEST(kernels->pair_lanes(s.data(), tile, 0, tile, lanes.data()) == 0u);
    int wrong = 0;
    for (std::size_t r = 0; r < tile; ++r)
      for (std::size_t lane = 0; lane < tile; ++lane) {
        const float right = to_float(to_bfloat16(s[r * tile + lane]));
        const std::uint32_t by_row = rows[r / 2 * tile + lane], by_lane = lanes[r * tile / 2 + lane / 2];
        wrong += (r % 2 ? high(by_row) : low(by_row)) != (r == tile - 1 ? 0 : right);
        wrong += (lane % 2 ? high(by_lane) : low(by_lane)) != right;
      }
    BOOST_TEST(wrong == 0);
  }
}

BOOST_AUTO_TEST_CASE(faint_rows_are_lifted) {
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    std::vector<float> s(tile * tile, 0);
    s[3 * tile + 20] = -0x1.8p-31f;  // row 3 is faint
    s[3 * tile + 45] = 0x1p-149f;
    s[4 * tile + 16] = 0x1p-30f;  // row 4 is not
    s[4 * tile + 17] = 0x1p-120f;
    s[5 * tile + 63] = 0x1p-149f;  // outside of the lanes
    s[6 * tile + 30] = std::numeric_limits<float>::quiet_NaN();
    s[6 * tile + 31] = 0x1p-40f;
    s[7 * tile + 32] = std::numeric_limits<float>::infinity();
    std::vector<std::uint32_t> pairs(tile * tile / 2, 1);
    BOOST_TEST(kernels->pair_lanes(s.data(), 10, 16, 48, pairs.data()) == (1u << 3 | 1u << 6));
    const auto at = [&](int r, int lane) {
      const std::uint32_t pair = pairs[static_cast<std::size_t>(r * tile / 2 + lane / 2)];
      return lane % 2 ? high(pair) : low(pair);
    };
    BOOST_TEST(at(3, 20) * internal::faint_unit == -0x1.8p-31f);
    BOOST_TEST(at(3, 45) * internal::faint_unit == 0x1p-149f);
    BOOST_TEST(at(4, 16) == 0x1p-30f);
    BOOST_TEST(at(4, 17) == 0x1p-120f);
    BOOST_TEST(at(5, 40) == 0.0f);
    BOOST_TEST(std::isnan(at(6, 30)));
    BOOST_TEST(at(6, 31) * internal::faint_unit == 0x1p-40f);
    BOOST_TEST(at(7, 32) == std::numeric_limits<float>::infinity());
    // A sum that a product of pairs would flush.
    const std::vector<std::uint32_t> ones(tile / 2 * 16, 0x3f803f80);
    std::vector<float> sums(32, 0);
    float* const out[] = {sums.data()};
    s.assign(tile * tile, 0x1p-140f);
    BOOST_TEST(kernels->pair_lanes(s.data(), 1, 0, tile, pairs.data()) == 1u);
    kernels->accumulate_pairs_compensated(pairs.data(), 1, tile / 2, ones.data(), 0, tile / 2, 16, internal::faint_unit,
                                          out, 16, 1, true);
    BOOST_TEST(sums[7] == 0x1p-134f);
  }
}

BOOST_AUTO_TEST_CASE(exceptional_elements_are_left_out_and_found_again) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    for (const std::size_t width : {5u, 16u, 40u}) {
      Bits data = normal_bits(3 * width, 4);
      const auto rows = row_pointers(data, width);
      const std::size_t padded = (width + 15) / 16 * 16;
      std::vector<std::uint32_t> pairs(tile / 2 * padded);
      BOOST_TEST(!kernels->interleave(rows.data(), 3, static_cast<std::int64_t>(width), pairs.data()));
      const float odd[] = {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 0x1p-81f, -0x1p-130f};
      for (std::size_t n = 0; n < 5; ++n) data[width + n] = to_bfloat16(odd[n]).bits;
      data[0] = to_bfloat16(0x1p-80f).bits;  // the smallest that stays
      data[1] = 0x8000;                      // -0
      BOOST_TEST(kernels->interleave(rows.data(), 3, static_cast<std::int64_t>(width), pairs.data()));
      std::vector<float> found(padded);
      kernels->exceptional_row(rows[1], static_cast<std::int64_t>(width), found.data());
      for (std::size_t c = 0; c < width; ++c) {
        BOOST_TEST(low(pairs[c]) == value(rows[0][c]));
        BOOST_TEST(high(pairs[c]) == (c < 5 ? 0 : value(rows[1][c])));
        BOOST_TEST(low(pairs[padded + c]) == value(rows[2][c]));
        BOOST_TEST(high(pairs[padded + c]) == 0);
        BOOST_TEST((c == 2 ? std::isnan(found[c]) : found[c] == (c < 5 ? odd[c] : 0)));
      }
      const auto columns = static_cast<std::int64_t>(width);
      for (const int count : {1, 3}) {
        const std::uint32_t weights[] = {0x3f803f80, 0x00003f80, 0x40003f80, 0x00003f80, 0x3f804000, 0x00003f80};
        std::vector<float> sums(3 * padded), right(3 * padded);
        float *const out[] = {&sums[0], &sums[padded], &sums[2 * padded]}, *const out_right[] = {&right[0],
                                                                                                 &right[padded],
                                                                                                 &right[2 * padded]};
        // Pairs 5 and 6 of a tile, and (as pairs) its first two.
        BOOST_TEST(kernels->row_accumulate_pairs(weights, 2, rows.data(), 5, 3, columns, 0, out, count));
        kernels->accumulate_pairs(weights, 1, 2, pairs.data(), 0, 2, static_cast<std::int64_t>(padded), out_right,
                                  count);
        BOOST_TEST((sums == right));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(softmax_sums_what_it_stores) {
  for (const Kernels* kernels : pair_tables()) {
    const internal::KernelScope scope(*kernels, true);
    for (const int count : {1, 2, 3, 5, 6, 7, 64}) {
      std::vector<float> s(tile * tile);
      for (std::size_t n = 0; n < s.size(); ++n) s[n] = 4 * std::sin(static_cast<float>(n));
      std::vector<float> plain = s;
      alignas(64) float m[2][tile], sum[2][tile] = {}, lo[2][tile] = {}, rounded[tile] = {}, rounded_lo[tile] = {},
                                    alpha[tile];
      for (auto& row : m) std::fill(row, row + tile, -std::numeric_limits<float>::infinity());
      std::vector<std::uint32_t> pairs(tile / 2 * tile), again = pairs;
      kernels->softmax(plain.data(), count, m[0], sum[0], lo[0], alpha, nullptr, 0, tile);
      const std::vector<float> scores = s;
      std::vector<float> sums(5 * tile);  // of a call by itself, which leaves the scores as they are
      std::fill(sums.begin(), sums.begin() + tile, -std::numeric_limits<float>::infinity());
      kernels->softmax_pairs(s.data(), count, &sums[0], &sums[tile], &sums[2 * tile], &sums[3 * tile], &sums[4 * tile],
                             alpha, nullptr, 0, tile, false, pairs.data());
      BOOST_TEST((s == scores));
      const std::vector<std::uint32_t> pairs_by_itself = pairs;
      kernels->softmax_pairs(s.data(), count, m[1], sum[1], lo[1], rounded, rounded_lo, alpha, nullptr, 0, tile, true,
                             pairs.data());
      BOOST_TEST((pairs == pairs_by_itself));
      kernels->pair_rows(plain.data(), count, 0, tile, again.data());
      BOOST_TEST((s == plain));
      BOOST_TEST((pairs == again));
      for (std::size_t lane = 0; lane < tile; ++lane) {
        BOOST_TEST(m[0][lane] == m[1][lane]);
        BOOST_TEST(sum[0][lane] == sum[1][lane]);
        double right = 0;
        for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r)
          right += static_cast<double>(to_float(to_bfloat16(plain[r * tile + lane])));
        BOOST_TEST(std::fabs(static_cast<double>(rounded[lane]) / right - 1) < 1e-6);
      }
      // One row by itself, keys in the lanes.
      constexpr std::size_t lane = 21;
      std::vector<float> row(tile, -std::numeric_limits<float>::infinity());
      std::vector<std::uint32_t> row_pairs(tile / 2);
      for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n)
        row[n] = 4 * std::sin(static_cast<float>(n * tile + lane));
      float of[6] = {-std::numeric_limits<float>::infinity()};
      kernels->row_softmax_pairs(row.data(), (count + 15) / 16 * 16, &of[0], &of[1], &of[2], &of[3], &of[4], &of[5],
                                 row_pairs.data());
      BOOST_TEST(of[0] == m[1][lane]);
      BOOST_TEST(of[1] == sum[1][lane]);
      BOOST_TEST(of[2] == lo[1][lane]);
      BOOST_TEST(of[3] == rounded[lane]);
      BOOST_TEST(of[4] == rounded_lo[lane]);
      for (std::size_t n = 0; n < static_cast<std::size_t>(count); ++n) {
        BOOST_TEST(row[n] == s[n * tile + lane]);
        BOOST_TEST(row_pairs[n / 2] == pairs[n / 2 * tile + lane]);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
