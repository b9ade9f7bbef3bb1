// The product kernels of every instruction set that this machine runs: shapes around their tiles against double, and
// elements whose bits do not depend on the rest of the product.
#include "matmul.hpp"
#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

using internal::Matmul;

std::vector<const Matmul*> tables() {
  std::vector<const Matmul*> result{&internal::matmul_generic};
#if defined(DSALT_MATMUL_X86)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) result.push_back(&internal::matmul_avx2);
  if (__builtin_cpu_supports("avx512f")) result.push_back(&internal::matmul_avx512);
#endif
  return result;
}

template <class T>
std::vector<T> numbers(std::int64_t count, std::uint32_t seed) {
  const Values drawn = values(random({count}, seed));
  return std::vector<T>(drawn.begin(), drawn.end());
}

const std::int64_t sizes[] = {1, 3, 4, 6, 7, 17, 70, 131};

template <class T>
void dot_against_double(const Matmul& table, internal::DotKernel<T>* dot, double unit) {
  for (const std::int64_t m : sizes)
    for (const std::int64_t n : {1, 4, 5, 66})
      for (const std::int64_t k : {1, 15, 16, 33, 512, 1100}) {
        const std::int64_t a_stride = k + 3, b_stride = k + 1, c_stride = n + 2;
        const auto a = numbers<T>(m * a_stride, 1), b = numbers<T>(n * b_stride, 2);
        std::vector<T> c(m * c_stride, T{3}), alone(1);
        dot(m, n, k, a.data(), a_stride, b.data(), b_stride, c.data(), c_stride);
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < c_stride; ++j) {
            double need = 3, terms = 3;
            for (std::int64_t t = 0; t < k && j < n; ++t) {
              const double term = static_cast<double>(a[i * a_stride + t]) * static_cast<double>(b[j * b_stride + t]);
              need += term;
              terms += std::fabs(term);
            }
            BOOST_REQUIRE_MESSAGE(std::fabs(c[i * c_stride + j] - need) <= 4 * unit * terms,
                                  table.name << " dot " << m << "x" << n << "x" << k << " at " << i << "," << j);
          }
        alone[0] = 3;
        dot(1, 1, k, a.data() + (m - 1) * a_stride, a_stride, b.data() + (n - 1) * b_stride, b_stride, alone.data(), 1);
        BOOST_TEST(alone[0] == c[(m - 1) * c_stride + n - 1]);
      }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(matmul)

BOOST_AUTO_TEST_CASE(dot) {
  for (const Matmul* table : tables()) {
    dot_against_double<float>(*table, table->dot, 0x1p-24);
    dot_against_double<double>(*table, table->dot_double, 0x1p-53);
  }
}

BOOST_AUTO_TEST_CASE(accumulate) {
  for (const Matmul* table : tables())
    for (const bool transposed : {false, true})
      for (const std::int64_t m : {1, 5, 6, 7, 31})
        for (const std::int64_t n : sizes)
          for (const std::int64_t k : {1, 5, 128, 300}) {
            const std::int64_t a_row = transposed ? 1 : k + 3, a_column = transposed ? m + 3 : 1;
            const std::int64_t b_stride = n + 1, c_stride = n + 2;
            const auto a = numbers<float>((k + 3) * (m + 3), 1), b = numbers<float>(k * b_stride, 2);
            std::vector<float> c(m * c_stride, 3.0f);
            table->accumulate(m, n, k, a.data(), a_row, a_column, b.data(), b_stride, c.data(), c_stride);
            for (std::int64_t i = 0; i < m; ++i)
              for (std::int64_t j = 0; j < c_stride; ++j) {
                double need = 3, terms = 3;
                for (std::int64_t t = 0; t < k && j < n; ++t) {
                  const double term =
                      static_cast<double>(a[i * a_row + t * a_column]) * static_cast<double>(b[t * b_stride + j]);
                  need += term;
                  terms += std::fabs(term);
                }
                BOOST_REQUIRE_MESSAGE(
                    std::fabs(static_cast<double>(c[i * c_stride + j]) - need) <= 4 * 0x1p-24 * terms,
                    table->name << " accumulate " << m << "x" << n << "x" << k << " at " << i << "," << j);
              }
            // A row alone, and a column alone.
            std::vector<float> row(n, 3.0f), element(1, 3.0f);
            table->accumulate(1, n, k, a.data() + (m - 1) * a_row, a_row, a_column, b.data(), b_stride, row.data(), n);
            table->accumulate(1, 1, k, a.data() + (m - 1) * a_row, a_row, a_column, b.data() + n - 1, b_stride,
                              element.data(), 1);
            for (std::int64_t j = 0; j < n; ++j) BOOST_REQUIRE_EQUAL(row[j], c[(m - 1) * c_stride + j]);
            BOOST_REQUIRE_EQUAL(element[0], row[n - 1]);
          }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
