// The panel kernels of every instruction set that this machine runs: shapes around their tiles against double, and
// elements whose bits do not depend on the rest of the call.
#include "kernels.hpp"
#include "operations_support.hpp"
#include "panel_kernels.hpp"

namespace dsalt::cpu_test {
namespace {

using internal::panel_width;
using internal::PanelKernels;

std::vector<const PanelKernels*> tables() {
  internal::KernelChoice choices[internal::most_kernels];
  std::vector<const PanelKernels*> result;
  const int count = internal::available_kernels(choices);
  for (int n = 0; n < count; ++n) result.push_back(&internal::panel_kernels_for(*choices[n].table));
  return result;
}

std::vector<float> numbers(std::int64_t count, std::uint32_t seed, double size = 1) {
  const Values drawn = values(random({count}, seed, DType::f32, size));
  return std::vector<float>(drawn.begin(), drawn.end());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(panels)

BOOST_AUTO_TEST_CASE(product) {
  for (const PanelKernels* table : tables())
    for (const bool transposed : {false, true})
      for (const bool add : {false, true})
        for (const std::int64_t count : {1, 2, 3, 4, 5, 6, 7, 13, 64})
          for (const std::int64_t width : {16, 32, 48, 64})
            for (const std::int64_t k : {0, 1, 5, 64, 131}) {
              const std::int64_t a_row = transposed ? 1 : k + 3, a_column = transposed ? count + 3 : 1;
              const std::int64_t c_stride = panel_width + 5;
              const auto a = numbers((k + 3) * (count + 3), 1), panel = numbers(k * panel_width + 64, 2);
              std::vector<float> c(count * c_stride, 3.0f);
              table->product(count, k, width, a.data(), a_row, a_column, panel.data(), c.data(), c_stride, add);
              for (std::int64_t i = 0; i < count; ++i)
                for (std::int64_t lane = 0; lane < c_stride; ++lane) {
                  const bool untouched = lane >= width;
                  double need = add || untouched ? 3 : 0, terms = need;
                  for (std::int64_t t = 0; t < k && !untouched; ++t) {
                    const double term = static_cast<double>(a[i * a_row + t * a_column]) *
                                        static_cast<double>(panel[t * panel_width + lane]);
                    need += term;
                    terms += std::fabs(term);
                  }
                  BOOST_REQUIRE_MESSAGE(
                      std::fabs(static_cast<double>(c[i * c_stride + lane]) - need) <= 16 * 0x1p-24 * terms,
                      table->name << " " << count << "x" << width << "x" << k << " at " << i << "," << lane);
                }
              // One row and 16 lanes alone.
              std::vector<float> alone(16, 3.0f);
              table->product(1, k, 16, a.data() + (count - 1) * a_row, a_row, a_column, panel.data() + width - 16,
                             alone.data(), 16, add);
              for (std::int64_t lane = 0; lane < 16; ++lane)
                BOOST_REQUIRE_EQUAL(alone[lane], c[(count - 1) * c_stride + width - 16 + lane]);
            }
}

BOOST_AUTO_TEST_CASE(transpose) {
  for (const PanelKernels* table : tables())
    for (const std::int64_t count : {0, 1, 17, 64})
      for (const std::int64_t k : {0, 1, 16, 35}) {
        const auto rows = numbers(64 * (k + 3), 3);
        std::vector<float> panel((k + 1) * panel_width, 7.0f);
        table->transpose(rows.data(), k + 3, count, k, panel.data());
        for (std::int64_t t = 0; t <= k; ++t)
          for (std::int64_t lane = 0; lane < panel_width; ++lane)
            BOOST_REQUIRE_EQUAL(panel[t * panel_width + lane],
                                t == k ? 7.0f : (lane < count ? rows[lane * (k + 3) + t] : 0.0f));
      }
}

BOOST_AUTO_TEST_CASE(softmax_of_logits) {
  for (const PanelKernels* table : tables())
    for (const double size : {1.0, 90.0})
      for (const std::int64_t width : {16, 64}) {
        const std::int64_t counts[] = {5, 1, 23};
        std::vector<float> maximum(64, -std::numeric_limits<float>::infinity());
        std::vector<double> exponentials(64), logits(64);
        std::vector<std::vector<float>> tiles;
        for (const std::int64_t count : counts) {
          tiles.push_back(numbers(count * panel_width, static_cast<std::uint32_t>(count), size));
          std::vector<float> s = tiles.back();
          table->add_logits(s.data(), count, width, maximum.data(), exponentials.data(), logits.data());
        }
        for (std::int64_t lane = 0; lane < width; ++lane) {
          double highest = -1e300, sum = 0, plain = 0, absolute = 0;
          for (std::size_t n = 0; n < tiles.size(); ++n)
            for (std::int64_t i = 0; i < counts[n]; ++i)
              highest = std::max(highest, static_cast<double>(tiles[n][i * panel_width + lane]));
          for (std::size_t n = 0; n < tiles.size(); ++n)
            for (std::int64_t i = 0; i < counts[n]; ++i) {
              const auto value = static_cast<double>(tiles[n][i * panel_width + lane]);
              sum += std::exp(value - highest);
              plain += value;
              absolute += std::fabs(value);
            }
          BOOST_REQUIRE_EQUAL(maximum[lane], static_cast<float>(highest));
          // The differences value - maximum are rounded: up to half a unit in the last place of 2 size.
          BOOST_REQUIRE(std::fabs(exponentials[lane] - sum) <= (4 + 2 * size) * 0x1p-23 * sum);
          BOOST_REQUIRE(std::fabs(logits[lane] - plain) <= 1e-12 * absolute);
        }
        const auto scale = numbers(64, 9);
        std::vector<float> by_lane = tiles[2], by_row = tiles[2];
        table->gradients_lanes(by_lane.data(), 23, width, maximum.data(), scale.data(), .25f);
        table->gradients_rows(by_row.data(), 23, width, maximum.data(), scale.data(), .25f);
        for (std::int64_t i = 0; i < 23; ++i)
          for (std::int64_t lane = 0; lane < width; ++lane) {
            const float s = tiles[2][i * panel_width + lane];
            const auto need = [&](std::int64_t at) {
              return std::exp(static_cast<double>(s - maximum[at])) * static_cast<double>(scale[at]);
            };
            const auto near = [&](float got, std::int64_t at) {
              return std::fabs(static_cast<double>(got) - (need(at) - .25)) <=
                     3 * 0x1p-23 * (std::fabs(need(at)) + .25);
            };
            BOOST_REQUIRE(near(by_lane[i * panel_width + lane], lane));
            if (s <= maximum[i] + 80) BOOST_REQUIRE(near(by_row[i * panel_width + lane], i));
          }
      }
}

BOOST_AUTO_TEST_CASE(flush) {
  for (const PanelKernels* table : tables()) {
    auto part = numbers(37, 4);
    const auto before = part;
    std::vector<double> total(37, .1);
    table->flush(part.data(), total.data(), 37);
    for (std::size_t n = 0; n < part.size(); ++n) {
      BOOST_TEST(part[n] == 0);
      BOOST_TEST(total[n] == .1 + static_cast<double>(before[n]));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
