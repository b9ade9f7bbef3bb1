// What is behind the operations: 16-bit conversions against dsalt/dtype.hpp, tensor walks, and loops over tasks.
#include "operations_support.hpp"
#include "parallel.hpp"
#include "rows.hpp"

namespace dsalt::cpu_test {
namespace {

using namespace dsalt::internal;

}  // namespace

BOOST_AUTO_TEST_SUITE(numerics)

BOOST_AUTO_TEST_CASE(widening_is_that_of_dtype) {
  std::int64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    wrong += std::bit_cast<std::uint32_t>(widen(float16{pattern})) !=
             std::bit_cast<std::uint32_t>(to_float(float16{pattern}));
    wrong += std::bit_cast<std::uint32_t>(widen(bfloat16{pattern})) !=
             std::bit_cast<std::uint32_t>(to_float(bfloat16{pattern}));
  }
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(narrowing_is_that_of_dtype) {
  std::int64_t wrong = 0;
  const auto try_bits = [&](std::uint32_t bits) {
    const auto value = std::bit_cast<float>(bits);
    wrong += narrowed<float16>(value).bits != to_float16(value).bits;
    wrong += narrowed<bfloat16>(value).bits != to_bfloat16(value).bits;
  };
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 1009) try_bits(static_cast<std::uint32_t>(bits));
  for (std::uint32_t half = 0; half < 65536; ++half)  // around every float16 and every tie between two
    for (const std::uint32_t rest : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu})
      try_bits(std::bit_cast<std::uint32_t>(to_float(float16{static_cast<std::uint16_t>(half)})) + rest);
  BOOST_TEST(wrong == 0);
}

BOOST_AUTO_TEST_CASE(walks_merge_only_what_every_view_allows) {
  const Tensor a = fresh({3, 1, 4, 5}, DType::f32), b = fresh({3, 1, 4, 5}, DType::f32, Layout::strided);
  BOOST_TEST(row_walk(3, a, TensorView{}).rank == 1);
  BOOST_TEST(row_walk(3, a, b.view()).rank == 2);
  const auto walk = row_walk(3, a, b.view());
  BOOST_REQUIRE_EQUAL(walk.size(), 12);
  for (std::int64_t row = 0; row < 12; ++row) {
    const auto [at_a, at_b] = walk.offsets(row);
    BOOST_TEST(at_a == row * 5);
    BOOST_TEST(at_b == row / 4 * b.view().strides[0] + row % 4 * b.view().strides[2]);
  }
  const Tensor long_row = fresh({2, 3000}, DType::f32);
  const auto pieces = piece_walk(long_row);
  std::int64_t covered = 0;
  for (std::int64_t index = 0; index < pieces.size(); ++index) {
    BOOST_TEST(pieces.offsets(index)[0] == covered);
    covered += pieces.extent(index);
  }
  BOOST_TEST(covered == 6000);
}

BOOST_AUTO_TEST_CASE(shared_tasks_are_taken_once_and_in_smaller_pieces_towards_the_end) {
  for (const std::int64_t count : {0, 1, 7, 1024})
    for (const int team : {1, 2, 64}) {
      SharedTasks shared(count, team, 64);
      std::int64_t next = 0, before = 64;
      for (TaskRange range = shared.take(); range.begin < range.end; range = shared.take()) {
        const std::int64_t size = range.end - range.begin;
        BOOST_TEST(range.begin == next);
        BOOST_TEST(size <= before);
        BOOST_TEST(size <= std::max<std::int64_t>(1, (count - range.begin) / (2 * team)));
        next = range.end;
        before = size;
      }
      BOOST_TEST(next == count);
      BOOST_TEST(shared.take().begin == count);
    }
  SharedTasks shared(100000, 4, 64);
  std::vector<std::atomic<int>> runs(100000);
#pragma omp parallel num_threads(4)
  for (TaskRange range = shared.take(); range.begin < range.end; range = shared.take())
    for (std::int64_t n = range.begin; n < range.end; ++n) ++runs[static_cast<std::size_t>(n)];
  for (const auto& n : runs) BOOST_REQUIRE(n == 1);
}

BOOST_AUTO_TEST_CASE(parallel_for_runs_each_index_once_and_rethrows) {
  for (const int threads : {1, 2, 7}) {
    std::vector<int> runs(1001);
    parallel_for(threads, 1001, 1, [&](std::int64_t index) { ++runs[index]; });
    BOOST_TEST((runs == std::vector<int>(1001, 1)));
    const auto fail = [&] {
      parallel_for(threads, 1001, 1, [](std::int64_t index) {
        if (index == 500) throw std::bad_alloc();
      });
    };
    BOOST_CHECK_THROW(fail(), std::bad_alloc);
    const auto no_scratch = [&] {
      parallel_for(
          threads, 1001, 1, []() -> int { throw std::bad_alloc(); }, [](int, std::int64_t) {});
    };
    BOOST_CHECK_THROW(no_scratch(), std::bad_alloc);
  }
  parallel_for(4, 0, 1, [](std::int64_t) { throw std::bad_alloc(); });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
