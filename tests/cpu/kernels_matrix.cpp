// The matrix and softmax kernels of every instruction set: right within rounding, and each element the same bits
// whatever else the call covers.
#include <boost/test/unit_test.hpp>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "kernels_support.hpp"

using namespace dsalt;
using namespace dsalt::test;
using internal::Kernels;
using internal::tile;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal(std::size_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (float& x : values) x = distribution(generator);
  return values;
}

std::vector<const float*> row_pointers(const std::vector<float>& data, std::size_t width) {
  std::vector<const float*> rows;
  for (std::size_t at = 0; at + width <= data.size(); at += width) rows.push_back(data.data() + at);
  return rows;
}

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_kernels_matrix)

BOOST_AUTO_TEST_CASE(scores) {
  for (const Kernels* kernels : tables())
    for (const std::size_t channels : {1u, 8u, 63u, 64u, 65u, 200u}) {
      const std::vector<float> packed = normal(channels * tile, 1), data = normal(channels * tile, 2);
      const auto rows = row_pointers(data, channels);
      std::vector<float> out(tile * tile), highest(tile, -inf);
      highest[9] = 1e30f;
      kernels->scores(packed.data(), rows.data(), tile, static_cast<std::int64_t>(channels), 0, tile, out.data(),
                      highest.data());
      for (std::size_t lane = 0; lane < tile; ++lane) {
        float largest = out[lane];
        for (std::size_t r = 1; r < tile; ++r) largest = std::max(largest, out[r * tile + lane]);
        BOOST_TEST(highest[lane] == (lane == 9 ? 1e30f : largest));
      }
      for (int r = 0; r < tile; ++r)
        for (int lane = 0; lane < tile; ++lane) {
          double sum = 0, size = 0;
          for (std::size_t c = 0; c < channels; ++c) {
            const double term = static_cast<double>(rows[static_cast<std::size_t>(r)][c]) *
                                static_cast<double>(packed[c * tile + static_cast<std::size_t>(lane)]);
            sum += term;
            size += std::fabs(term);
          }
          BOOST_REQUIRE(std::fabs(static_cast<double>(out[static_cast<std::size_t>(r * tile + lane)]) - sum) <=
                        4 * 0x1p-24 * size);
        }
      // Rows by themselves, keys in the lanes: lanes 37 to 42.
      constexpr int first_lane = 37, most_rows = 6;
      std::vector<float> queries(channels * most_rows);
      std::vector<const void*> query_rows;
      for (std::size_t r = 0; r < most_rows; ++r) {
        for (std::size_t c = 0; c < channels; ++c) queries[r * channels + c] = packed[c * tile + first_lane + r];
        query_rows.push_back(queries.data() + r * channels);
      }
      for (int row_count = 1; row_count <= most_rows; ++row_count)
        for (const int count : {1, 5, 16, 17, 59}) {
          std::vector<float> by_row(static_cast<std::size_t>(row_count) * tile);
          kernels->row_scores(query_rows.data(), row_count, rows.data() + 5, count, static_cast<std::int64_t>(channels),
                              0, by_row.data());
          for (int r = 0; r < row_count; ++r)
            for (int n = 0; n < count; ++n)
              BOOST_TEST(same(by_row[static_cast<std::size_t>(r * tile + n)],
                              out[static_cast<std::size_t>((n + 5) * tile + first_lane + r)]));
        }
      for (int count = 1; count <= 13; ++count)
        for (int begin = 0; begin < tile; begin += 16)
          for (int end = begin + 16; end <= tile; end += 16) {
            std::vector<float> part(tile * tile, quiet_nan);
            kernels->scores(packed.data(), rows.data() + 5, count, static_cast<std::int64_t>(channels), begin, end,
                            part.data(), nullptr);
            int wrong = 0;
            for (int r = 0; r < tile; ++r)
              for (int lane = 0; lane < tile; ++lane) {
                const float value = part[static_cast<std::size_t>(r * tile + lane)];
                const bool covered = r < count && lane >= begin && lane < end;
                wrong +=
                    covered ? !same(value, out[static_cast<std::size_t>((r + 5) * tile + lane)]) : !std::isnan(value);
              }
            BOOST_REQUIRE(wrong == 0);
          }
    }
}

// out[r] += sum_t a[t][r] rows[t] for 64 terms, into plain or compensated sums; `first`, `count` choose rows.
std::vector<float> accumulated(const Kernels& kernels, bool compensated, bool transposed, const std::vector<float>& a,
                               const std::vector<const float*>& rows, const std::vector<float>& start,
                               std::size_t width, int first, int count, int terms) {
  std::vector<float> sums = start;
  sums.resize(2 * tile * width, 0);
  std::vector<float*> out;
  for (std::size_t r = 0; r < tile; ++r) out.push_back(sums.data() + r * width);
  std::vector<float> weights = a;
  if (transposed)
    for (std::size_t t = 0; t < tile; ++t)
      for (std::size_t r = 0; r < tile; ++r) weights[r * tile + t] = a[t * tile + r];
  const std::int64_t t_stride = transposed ? 1 : tile, r_stride = transposed ? tile : 1;
  const float* from = weights.data() + first * r_stride;
  const auto columns = static_cast<std::int64_t>(width);
  if (compensated)
    kernels.accumulate_compensated(from, t_stride, r_stride, rows.data(), terms, columns, out.data() + first,
                                   tile * columns, count, false);
  else
    kernels.accumulate(from, t_stride, r_stride, rows.data(), terms, columns, out.data() + first, count);
  return sums;
}

BOOST_AUTO_TEST_CASE(accumulate) {
  for (const Kernels* kernels : tables())
    for (const bool compensated : {false, true})
      for (const std::size_t width : {16u, 32u, 48u, 64u, 80u, 128u}) {
        std::vector<float> a = normal(tile * tile, 3);
        for (std::size_t n = 0; n < a.size(); n += 3) a[n] = 0;
        const std::vector<float> data = normal(tile * width, 4), start = normal(tile * width, 5);
        const auto rows = row_pointers(data, width);
        const auto compute = [&](int first, int count, int terms, bool transposed) {
          return accumulated(*kernels, compensated, transposed, a, rows, start, width, first, count, terms);
        };
        const std::vector<float> whole = compute(0, tile, tile, false);
        for (std::size_t r = 0; r < tile; ++r)
          for (std::size_t c = 0; c < width; ++c) {
            double sum = static_cast<double>(start[r * width + c]), size = std::fabs(sum);
            for (std::size_t t = 0; t < tile; ++t) {
              const double term = static_cast<double>(a[t * tile + r]) * static_cast<double>(rows[t][c]);
              sum += term;
              size += std::fabs(term);
            }
            const double value =
                static_cast<double>(whole[r * width + c]) + static_cast<double>(whole[(tile + r) * width + c]);
            BOOST_REQUIRE_MESSAGE(std::fabs(value - sum) <= (compensated ? 4 : 8) * 0x1p-24 * size,
                                  kernels->name << " " << compensated << " width " << width << " row " << r
                                                << " column " << c << ": " << value << " for " << sum);
          }
        BOOST_TEST((compute(0, tile, tile, true) == whole));
        for (int first = 0; first < 9; first += 4)
          for (int count = 1; count <= 13; ++count) {
            const std::vector<float> part = compute(first, count, tile, false);
            int wrong = 0;
            for (int r = 0; r < tile; ++r)
              for (std::size_t c = 0; c < width; ++c) {
                const std::size_t at = static_cast<std::size_t>(r) * width + c;
                const bool covered = r >= first && r < first + count;
                wrong += !same(part[at], covered ? whole[at] : start[at]);
              }
            BOOST_TEST(wrong == 0);
          }
      }
}

BOOST_AUTO_TEST_CASE(accumulate_ignores_what_has_no_weight) {
  for (const Kernels* kernels : tables())
    for (const bool compensated : {false, true}) {
      std::vector<float> a(tile * tile, 0), data = normal(tile * 64, 6);
      for (int r = 0; r < tile; ++r) a[static_cast<std::size_t>(3 * tile + r)] = 2;
      a[10 * tile + 20] = 1;  // row 20 alone takes term 10
      for (const std::size_t t : {10u, 11u})
        for (std::size_t c = 0; c < 64; ++c) data[t * 64 + c] = c % 2 ? quiet_nan : inf;
      const auto rows = row_pointers(data, 64);
      const std::vector<float> sums =
          accumulated(*kernels, compensated, false, a, rows, std::vector<float>(tile * 64, 0), 64, 0, tile, tile);
      for (std::size_t r = 0; r < tile; ++r)
        for (std::size_t c = 0; c < 64; ++c)
          BOOST_REQUIRE((r == 20 ? !std::isfinite(sums[r * 64 + c]) : sums[r * 64 + c] == 2 * data[3 * 64 + c]));
    }
}

BOOST_AUTO_TEST_CASE(compensated_sums_do_not_drift) {
  // 100,000 tiles of 64 times 0.1: plain float32 sums are off by thousands of ulp.
  const double right = 100000.0 * 64 * static_cast<double>(0.1f);
  for (const Kernels* kernels : tables()) {
    const std::vector<float> a(tile, 1), data(tile * 16, 0.1f);
    const auto rows = row_pointers(data, 16);
    std::vector<float> sum(32, quiet_nan), folded(48, 0);  // the first sum does not look at it
    float *out[] = {sum.data()}, *running[] = {folded.data()};
    for (int n = 0; n < 100000; ++n) {
      kernels->accumulate_compensated(a.data(), 1, 1, rows.data(), tile, 16, out, 16, 1, n == 0);
      kernels->accumulate(a.data(), 1, 1, rows.data(), tile, 16, running, 1);
      if (n % 4 != 3) continue;
      kernels->fold(folded.data(), folded.data() + 16, folded.data() + 32, 16, n == 3);
      std::fill_n(folded.begin(), 16, 0.0f);
    }
    BOOST_TEST(std::fabs((static_cast<double>(sum[0]) + static_cast<double>(sum[16])) / right - 1) < 64 * 0x1p-24);
    BOOST_TEST(std::fabs((static_cast<double>(folded[16]) + static_cast<double>(folded[32])) / right - 1) <
               128 * 0x1p-24);
  }
}

BOOST_AUTO_TEST_CASE(first_sums_are_sums_onto_zeros) {
  for (const Kernels* kernels : tables())
    for (const int count : {1, 5, 16}) {
      const std::vector<float> a = normal(tile * 16, 10);
      std::vector<float> data = normal(tile * 48, 11);
      data[7 * 48 + 9] = inf;
      const auto rows = row_pointers(data, 48);
      std::vector<float> onto_zeros(2 * 16 * 48, 0), first(2 * 16 * 48, quiet_nan), higher(16 * 48, quiet_nan);
      std::vector<float*> out[3];
      for (std::size_t r = 0; r < 16; ++r) {
        out[0].push_back(onto_zeros.data() + r * 48);
        out[1].push_back(first.data() + r * 48);
        out[2].push_back(higher.data() + r * 48);
      }
      const auto add = [&](std::vector<float*>& to, std::int64_t lo_offset, bool is_first) {
        kernels->accumulate_compensated(a.data(), 16, 1, rows.data(), tile, 48, to.data(), lo_offset, count, is_first);
      };
      add(out[0], 16 * 48, false);
      add(out[1], 16 * 48, true);
      add(out[2], 0, true);
      for (std::size_t n = 0; n < static_cast<std::size_t>(count) * 48; ++n) {
        BOOST_TEST(same(first[n], onto_zeros[n]));
        BOOST_TEST(std::isnan(first[16 * 48 + n]) == std::isnan(onto_zeros[16 * 48 + n]));
        if (std::isfinite(first[n])) BOOST_TEST(first[16 * 48 + n] == 0);
        BOOST_TEST(same(higher[n], onto_zeros[n]));
      }
    }
}

BOOST_AUTO_TEST_CASE(finish_is_a_last_fold) {
  for (const Kernels* kernels : tables())
    for (const float divisor : {1.0f, 3.0f}) {
      std::vector<float> running = normal(48, 8), more = normal(48, 9);
      running[3] = -0.0f;
      running[4] = inf;
      running[5] = quiet_nan;
      running[6] = more[6] = -0.0f;
      more[7] = -inf;
      // Onto zeros, and onto what was never written.
      std::vector<float> hi(48, 0), lo(48, 0), first_hi(48, quiet_nan), first_lo(48, quiet_nan);
      kernels->fold(running.data(), hi.data(), lo.data(), 48, false);
      kernels->fold(running.data(), first_hi.data(), first_lo.data(), 48, true);
      std::vector<float> once(48), folded_once(48), twice(48), folded_twice(48);
      kernels->finish(running.data(), nullptr, nullptr, divisor, once.data(), 48);
      kernels->finish(nullptr, hi.data(), lo.data(), divisor, folded_once.data(), 48);
      kernels->finish(more.data(), first_hi.data(), first_lo.data(), divisor, twice.data(), 48);
      kernels->fold(more.data(), hi.data(), lo.data(), 48, false);
      kernels->finish(nullptr, hi.data(), lo.data(), divisor, folded_twice.data(), 48);
      for (std::size_t n = 0; n < 48; ++n) {
        BOOST_TEST(same(once[n], folded_once[n]));
        BOOST_TEST(same(twice[n], folded_twice[n]));
      }
      BOOST_TEST(!std::signbit(once[3]));
      BOOST_TEST(!std::signbit(twice[6]));
    }
}

BOOST_AUTO_TEST_CASE(transpose) {
  for (const Kernels* kernels : tables())
    for (const std::size_t channels : {1u, 7u, 16u, 40u, 64u})
      for (const int count : {1, 4, 17, 63, 64}) {
        const std::vector<float> data = normal(tile * channels, 7);
        const auto rows = row_pointers(data, channels);
        std::vector<float> packed(channels * tile, quiet_nan);
        const std::vector<const void*> pointers(rows.begin(), rows.end());
        kernels->transpose(pointers.data(), count, static_cast<std::int64_t>(channels), packed.data());
        int wrong = 0;
        for (std::size_t c = 0; c < channels; ++c)
          for (int lane = 0; lane < (count + 15) / 16 * 16; ++lane)
            wrong += packed[c * tile + static_cast<std::size_t>(lane)] !=
                     (lane < count ? rows[static_cast<std::size_t>(lane)][c] : 0);
        BOOST_TEST(wrong == 0);
      }
}

BOOST_AUTO_TEST_CASE(masks) {
  for (const Kernels* kernels : tables()) {
    alignas(64) std::int32_t first[tile], last[tile], newest[tile], key[tile];
    float bias[tile];
    for (int n = 0; n < tile; ++n) {
      first[n] = n % 13;
      last[n] = first[n] + n % 29 - 2;
      newest[n] = n % 40;
      key[n] = n * 2 / 3;
      bias[n] = static_cast<float>(n) / 8;
    }
    const std::vector<float> start(tile * tile, 1);
    std::vector<float> a = start, c = start;
    kernels->mask_lanes(a.data(), tile, 0, first, last, 16, 48);
    kernels->mask_landmarks(c.data(), tile, key, bias, first, last, newest, 16, 48);
    int wrong = 0;
    for (int r = 0; r < tile; ++r)
      for (int lane = 0; lane < tile; ++lane) {
        const auto at = static_cast<std::size_t>(r * tile + lane);
        const bool used = lane >= 16 && lane < 48;
        wrong += a[at] != (used && !(first[lane] <= r && r <= last[lane]) ? -inf : 1);
        const bool refused = (first[lane] <= key[r] && key[r] <= last[lane]) || key[r] > newest[lane];
        wrong += c[at] != (used ? refused ? -inf : 1 + bias[r] : 1);
      }
    BOOST_TEST(wrong == 0, kernels->name);
  }
}

// A row by itself, keys in the lanes, over three blocks of keys with the maximum growing.
BOOST_AUTO_TEST_CASE(softmax_of_one_row) {
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  constexpr int lane = 21;
  for (const Kernels* kernels : tables())
    for (const int count : {1, 2, 5, 16, 19, 63, 64}) {
      alignas(64) float m[tile], sum[tile] = {}, lo[tile] = {}, alpha[tile];
      std::fill(m, m + tile, minus_infinity);
      float of[4] = {minus_infinity};
      for (int block = 0; block < 3; ++block) {
        std::vector<float> s(tile * tile), row(tile, minus_infinity);
        for (std::size_t n = 0; n < s.size(); ++n)
          s[n] = static_cast<float>(1 + 7 * block) * std::sin(static_cast<float>(n));
        if (count > 2) s[2 * tile + lane] = minus_infinity;
        for (int n = 0; n < count; ++n) row[static_cast<std::size_t>(n)] = s[static_cast<std::size_t>(n * tile + lane)];
        kernels->softmax(s.data(), count, m, sum, lo, alpha, nullptr, 0, tile);
        const int lanes = (count + 15) / 16 * 16;
        BOOST_TEST(kernels->row_softmax(row.data(), lanes, &of[0], &of[1], &of[2], &of[3]) == (alpha[lane] != 1));
        BOOST_TEST(same(of[0], m[lane]));
        BOOST_TEST(same(of[1], sum[lane]));
        BOOST_TEST(same(of[2], lo[lane]));
        BOOST_TEST(same(of[3], alpha[lane]));
        for (int n = 0; n < count; ++n)
          BOOST_TEST(same(row[static_cast<std::size_t>(n)], s[static_cast<std::size_t>(n * tile + lane)]));
      }
    }
}

// What is known about the largest score decides who looks for it, never the result.
BOOST_AUTO_TEST_CASE(softmax_below_a_bound) {
  for (const Kernels* kernels : tables())
    for (const int count : {1, 3, 4, 63, 64})
      for (const float above : {0.0f, 1.0f, 100.0f, inf}) {
        std::vector<float> s = normal(tile * tile, 12);
        for (int r = 0; r < tile; ++r) {
          s[static_cast<std::size_t>(r * tile + 3)] = -inf;  // nothing admitted
          s[static_cast<std::size_t>(r * tile + 40)] += 20;  // far above m
        }
        s[41] = quiet_nan;
        alignas(64) float m[2][tile], sum[2][tile], lo[2][tile], alpha[2][tile], bound[tile];
        std::vector<float> weights[2] = {s, s};
        for (int lane = 0; lane < tile; ++lane) {
          bound[lane] = -inf;
          for (int r = 0; r < count; ++r)
            if (const float x = s[static_cast<std::size_t>(r * tile + lane)]; x > bound[lane]) bound[lane] = x;
          bound[lane] += above;
          for (int n = 0; n < 2; ++n) {
            m[n][lane] = lane % 5 == 0 && lane < 32 ? -inf : 0.5f;
            sum[n][lane] = m[n][lane] == -inf ? 0 : 1.25f;
            lo[n][lane] = 0;
          }
        }
        bool rescales[2];
        for (int n = 0; n < 2; ++n)
          rescales[n] = kernels->softmax(weights[n].data(), count, m[n], sum[n], lo[n], alpha[n],
                                         n == 0 ? nullptr : bound, 0, tile);
        BOOST_TEST(rescales[0] == rescales[1]);
        for (int lane = 0; lane < tile; ++lane) {
          BOOST_TEST(same(m[0][lane], m[1][lane]));
          BOOST_TEST(same(sum[0][lane], sum[1][lane]));
          BOOST_TEST(same(lo[0][lane], lo[1][lane]));
          BOOST_TEST(same(alpha[0][lane], alpha[1][lane]));
        }
        for (std::size_t n = 0; n < s.size(); ++n) BOOST_REQUIRE(same(weights[0][n], weights[1][n]));
      }
}

BOOST_AUTO_TEST_CASE(softmax_leaves_unconcerned_rows_alone) {
  for (const Kernels* kernels : tables())
    for (const int count : {1, 3, 4, 63, 64}) {
      std::vector<float> s = normal(tile * tile, 8);
      alignas(64) float m[tile], sum[tile], lo[tile], alpha[tile];
      for (int lane = 0; lane < tile; ++lane) {
        m[lane] = lane % 3 == 0 ? -inf : 0.5f;
        sum[lane] = m[lane] == -inf ? 0 : 1.25f;
        lo[lane] = m[lane] == -inf ? 0 : 1e-9f;
        for (int r = 0; r < tile; ++r)
          if (lane % 2 == 0) s[static_cast<std::size_t>(r * tile + lane)] = -inf;  // nothing admitted
        if (lane == 5) s[5] = 1e5f;                                                // far above m
        if (lane == 7) s[7] = m[7] + 7.5f;                                         // within the slack
      }
      const std::vector<float> before = s;
      float old_m[tile];
      std::copy(m, m + tile, old_m);
      BOOST_TEST(kernels->softmax(s.data(), count, m, sum, lo, alpha, nullptr, 0, tile) == (count > 0));
      for (int lane = 0; lane < tile; ++lane) {
        if (lane % 2 == 0) {
          BOOST_TEST(same(m[lane], old_m[lane]));
          BOOST_TEST(alpha[lane] == 1);
          BOOST_TEST(sum[lane] == (old_m[lane] == -inf ? 0 : 1.25f));
          BOOST_TEST(lo[lane] == (old_m[lane] == -inf ? 0 : 1e-9f));
          for (int r = 0; r < count; ++r) BOOST_TEST(s[static_cast<std::size_t>(r * tile + lane)] == 0);
          continue;
        }
        if (lane == 5) BOOST_TEST((m[lane] == 1e5f && alpha[lane] == 0 && s[5] == 1));
        if (lane == 7) BOOST_TEST((m[lane] == 0.5f && alpha[lane] == 1));
        double right =
            old_m[lane] == -inf ? 0 : 1.25 * std::exp(static_cast<double>(old_m[lane]) - static_cast<double>(m[lane]));
        for (int r = 0; r < count; ++r)
          right += std::exp(static_cast<double>(before[static_cast<std::size_t>(r * tile + lane)]) -
                            static_cast<double>(m[lane]));
        BOOST_TEST(std::fabs(static_cast<double>(sum[lane]) / right - 1) < 1e-6);
      }
    }
}

BOOST_AUTO_TEST_SUITE_END()
