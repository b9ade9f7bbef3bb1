// A page table in device memory, whose entries nobody has checked: one that names no page is not read through. Its keys
// and values are NaN, other sequences keep their bits, and the device goes on.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "dsalt/attention.hpp"
#include "dsalt/backend.hpp"
#include "gpu_support.hpp"

using namespace dsalt;
using namespace gpu_test;

namespace {

constexpr std::int64_t heads = 2, rows = 3, d = 64, page = 16, pages = 4;

template <class T>
Tensor uploaded(Backend& cuda, std::initializer_list<std::int64_t> shape, DType dtype, const std::vector<T>& values) {
  Tensor tensor = empty(cuda, std::span<const std::int64_t>(shape.begin(), shape.size()), dtype);
  cuda.copy_from_host(tensor.view().data, values.data(), values.size() * sizeof(T));
  return tensor;
}

/// Small multiples of 1/64, from one pattern to the next.
template <class T, class Convert>
std::vector<T> numbers(std::int64_t count, Convert&& convert) {
  std::vector<T> values;
  for (std::int64_t n = 0; n < count; ++n) values.push_back(convert(static_cast<float>(n * 37 % 127 - 63) / 64));
  return values;
}

/// out [2,heads,rows,d] of two sequences of 40 and 20 keys.
template <class T, class Convert>
std::vector<T> attend(Backend& cuda, DType dtype, Mask mask, const std::vector<std::int32_t>& table,
                      Convert&& convert) {
  const Tensor q = uploaded(cuda, {2, heads, rows, d}, dtype, numbers<T>(2 * heads * rows * d, convert));
  const Tensor k = uploaded(cuda, {pages, 1, page, d}, dtype, numbers<T>(pages * page * d, convert));
  const Tensor window = uploaded(cuda, {2, 1, rows}, DType::i32, std::vector<std::int32_t>(2 * rows, 100));
  const Tensor lengths = uploaded(cuda, {2}, DType::i32, std::vector<std::int32_t>{40, 20});
  const Tensor entries = uploaded(cuda, {2, 3}, DType::i32, table);
  std::vector<T> out(static_cast<std::size_t>(2 * heads * rows * d));
  const Tensor result = uploaded(cuda, {2, heads, rows, d}, dtype, out);
  AttentionInputs in;
  in.q = q, in.k = in.v = k, in.k_lengths = lengths, in.page_table = entries;
  if (mask == Mask::sparse) in.window = window;
  AttentionProblem problem;
  problem.mask = mask;
  attention_forward(cuda, problem, in, {result, {}});
  cuda.copy_to_host(out.data(), result.view().data, out.size() * sizeof(T));
  return out;
}

template <class T, class Convert>
void check(DType dtype, bool deterministic, Convert&& convert) {
  const auto cuda = make_cuda(nullptr, deterministic);
  for (const Mask mask : {Mask::full, Mask::causal, Mask::sparse}) {
    const auto good = attend<T>(*cuda, dtype, mask, {2, 1, 0, 1, 3, 0}, convert);
    const std::size_t half = good.size() / 2;
    for (std::size_t n = 0; n < good.size(); ++n) BOOST_REQUIRE(std::isfinite(static_cast<float>(good[n])));
    for (const std::int32_t entry :
         {-1, int{pages}, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
      const auto bad = attend<T>(*cuda, dtype, mask, {2, entry, 0, 1, 3, entry}, convert);
      for (std::size_t n = 0; n < half; ++n) BOOST_REQUIRE(std::isnan(static_cast<float>(bad[n])));
      BOOST_TEST(std::memcmp(bad.data() + half, good.data() + half, half * sizeof(T)) == 0, "entry " << entry);
    }
  }
}

/// Bits of a bfloat16.
struct Half {
  std::uint16_t bits = 0;
  explicit operator float() const { return to_float(bfloat16{bits}); }
};

}  // namespace

BOOST_AUTO_TEST_CASE(an_entry_that_names_no_page_float32) {
  check<float>(DType::f32, true, [](float x) { return x; });
}

BOOST_AUTO_TEST_CASE(an_entry_that_names_no_page_bfloat16) {
  for (const bool deterministic : {false, true})  // Hopper: kernels that read pages where they are, and copies of them
    check<Half>(DType::bf16, deterministic, [](float x) { return Half{to_bfloat16(x).bits}; });
}
