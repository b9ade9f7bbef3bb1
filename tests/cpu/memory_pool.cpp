// Memory that one call of the cpu backend leaves to the next.
#include "memory_pool.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <vector>

using dsalt::internal::MemoryPool;

BOOST_AUTO_TEST_SUITE(cpu_memory_pool)

BOOST_AUTO_TEST_CASE(blocks_come_back) {
  MemoryPool pool;
  const MemoryPool::Block large = pool.take(100000), small = pool.take(1000);
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(large.data) % 64 == 0u);
  BOOST_TEST(large.bytes >= 100000u);
  pool.give_back(large);
  pool.give_back(small);
  const MemoryPool::Block again = pool.take(70000), more = pool.take(70000), tiny = pool.take(900);
  BOOST_TEST(again.data == large.data);
  BOOST_TEST(again.bytes == large.bytes);
  BOOST_TEST(more.data != large.data);
  BOOST_TEST(tiny.data == small.data);
  for (const MemoryPool::Block& block : {again, more, tiny}) pool.give_back(block);
}

BOOST_AUTO_TEST_CASE(a_large_block_does_not_serve_a_small_request) {
  MemoryPool pool;
  const MemoryPool::Block large = pool.take(100000);
  pool.give_back(large);
  const MemoryPool::Block small = pool.take(1000);
  BOOST_TEST(small.bytes < 2000u);
  pool.give_back(small);
  const MemoryPool::Block again = pool.take(100000);
  BOOST_TEST(again.data == large.data);
  pool.give_back(again);
}

BOOST_AUTO_TEST_CASE(what_it_keeps_is_bounded) {
  MemoryPool pool;
  constexpr std::size_t third = MemoryPool::most_kept / 3;
  std::vector<MemoryPool::Block> blocks;
  for (int n = 0; n < 4; ++n) blocks.push_back(pool.take(third));
  blocks.push_back(pool.take(MemoryPool::most_kept + 1));
  for (const MemoryPool::Block& block : blocks) pool.give_back(block);
  BOOST_TEST(pool.kept() <= MemoryPool::most_kept);
  BOOST_TEST(pool.kept() >= 3 * third);  // the oldest made room, and the one that is too large is not there
  for (int n = 0; n < 100; ++n) blocks[0] = pool.take(64), pool.give_back(blocks[0]);
  std::vector<MemoryPool::Block> many;
  for (int n = 0; n < 100; ++n) many.push_back(pool.take(64));
  for (const MemoryPool::Block& block : many) pool.give_back(block);
  BOOST_TEST(pool.kept() <= 100 * 64u);  // many small ones push out the large
}

BOOST_AUTO_TEST_SUITE_END()
