// dk and dv of the keys that queries admit by position:
//
//   dk_j = scale sum_{h in group, i} ds_ij q_i        dv_j = sum_{h, i} P_ij keep_ij do_i
//
// Row tiles add their shares in ascending order (KeySums::enter); then the sums that came through landmark lists are
// added. Rows past k_lengths are written as 0, rows outside a pack's sequences not at all.
#include <limits>
#include <thread>
#include <utility>

#include <omp.h>

#include "attention_backward.hpp"

namespace dsalt::internal {
namespace {

constexpr std::int64_t wave_bytes = 16 << 20;

/// Rows of a gradient and its sums are asked for so many rows before they are met.
constexpr std::int64_t rows_ahead = 8;

}  // namespace

KeySums::KeySums(const BackwardCall& call)
    : call_(call), active_(call.wants_keys()), d_(padded(call.sizes.d)), dv_(padded(call.sizes.dv)) {
  const std::int64_t heads = call.sizes.batch * call.sizes.hkv;
  first_key_.assign(static_cast<std::size_t>(heads) + 1, 0);
  first_key_tile_ = first_key_;
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t nk = sequence_extent(call.inputs, head / call.sizes.hkv).nk;
    const auto n = static_cast<std::size_t>(head);
    first_key_[n + 1] = first_key_[n] + nk;
    first_key_tile_[n + 1] = first_key_tile_[n] + call.tiles(nk);
  }
  const std::int64_t key_bytes = active_ ? 2 * (d_ + dv_) * 4 : 0;
  std::int64_t most_keys = 0, most_key_tiles = 0, most_tiles = 0;
  for (std::int64_t first = 0, end; first < heads; first = end) {
    const auto keys = [&](std::int64_t to) {
      return first_key_[static_cast<std::size_t>(to)] - first_key_[static_cast<std::size_t>(first)];
    };
    for (end = first + 1; end < heads && (keys(end + 1) * key_bytes <= wave_bytes ||
                                          tile_of_head(end) - tile_of_head(first) < call.threads);)
      ++end;  // also while there are fewer tiles than threads
    waves_.push_back({first, end, tile_of_head(first), tile_of_head(end)});
    most_keys = std::max(most_keys, keys(end));
    most_key_tiles = std::max(most_key_tiles, first_key_tile_[static_cast<std::size_t>(end)] -
                                                  first_key_tile_[static_cast<std::size_t>(first)]);
    most_tiles = std::max(most_tiles, waves_.back().end_tile - waves_.back().first_tile);
  }
  if (!active_) return;
  if (call.gradients.dk.present()) dk_sum_ = Array<float>::raw(most_keys * 2 * d_, call.pool);
  if (call.gradients.dv.present()) dv_sum_ = Array<float>::raw(most_keys * 2 * dv_, call.pool);
  used_ = Array<std::uint8_t>(most_key_tiles);
  left_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(most_tiles));
  passed_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(most_tiles));
}

std::int64_t KeySums::tile_of_head(std::int64_t head) const {
  const std::int64_t b = head / call_.sizes.hkv, kv_head = head % call_.sizes.hkv;
  if (b == call_.sizes.batch) return call_.first_tile.back();
  return call_.first_tile[static_cast<std::size_t>(b)] +
         kv_head * call_.group * call_.tiles(sequence_extent(call_.inputs, b).nq);
}

void KeySums::start(const Wave& wave) {
  wave_ = wave;
  if (!active_) return;
  for (std::int64_t n = 0; n < wave.end_tile - wave.first_tile; ++n)
    for (auto* of : {&left_, &passed_})
      (*of)[static_cast<std::size_t>(n)].store(std::numeric_limits<std::int64_t>::max(), std::memory_order_relaxed);
  std::fill_n(used_.get(), key_tile_of(wave.end_head, 0), std::uint8_t{0});
}

bool KeySums::first(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) {
  return std::exchange(used_[key_tile_of(b * call_.sizes.hkv + kv_head, key_tile)], std::uint8_t{1}) == 0;
}

void KeySums::clear(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) {
  const std::int64_t begin = key_tile * tile;
  const std::int64_t count = std::min<std::int64_t>(tile, sequence_extent(call_.inputs, b).nk - begin);
  if (dk_sum_.get()) std::fill_n(dk(b, kv_head, begin), count * 2 * d_, 0.0f);
  if (dv_sum_.get()) std::fill_n(dv(b, kv_head, begin), count * 2 * dv_, 0.0f);
}

float* KeySums::dk(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
  return dk_sum_.get() + row_of(b, kv_head, j) * 2 * d_;
}

float* KeySums::dv(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
  return dv_sum_.get() + row_of(b, kv_head, j) * 2 * dv_;
}

void KeySums::prefetch(std::int64_t b, std::int64_t kv_head, std::int64_t begin, std::int64_t end) const {
  const auto ask = [](const float* from, const float* to) {
    for (; from < to; from += 16) __builtin_prefetch(from, 1, 2);
  };
  if (dk_sum_.get()) ask(dk(b, kv_head, begin), dk(b, kv_head, end));
  if (dv_sum_.get()) ask(dv(b, kv_head, begin), dv(b, kv_head, end));
}

void KeySums::enter(std::int64_t n, std::int64_t chain, std::int64_t key_tile, std::int64_t& open) {
  // Tiles are claimed in ascending order, so those before are running or done: they need no thread that waits here.
  const auto of = [&](auto& tiles, std::int64_t m) -> auto& {
    return tiles[static_cast<std::size_t>(m - wave_.first_tile)];
  };
  for (std::int64_t m = open - 1; m >= chain && of(passed_, m).load(std::memory_order_acquire) > key_tile; --m) {
    const std::atomic<std::int64_t>& left = of(left_, m);
    for (int spins = 0; left.load(std::memory_order_acquire) > key_tile; ++spins)
      if (spins > 100) std::this_thread::yield();
    if (m == open - 1 && left.load(std::memory_order_acquire) == 0) open = m;
  }
  if (n > chain) of(passed_, n - 1).store(key_tile, std::memory_order_release);
}

void KeySums::leave(std::int64_t n, std::int64_t key_tile) {
  left_[static_cast<std::size_t>(n - wave_.first_tile)].store(key_tile, std::memory_order_release);
}

void KeySums::store(const LandmarkGradients& landmarks) {
  if (!active_) return;
  const std::int64_t hkv = call_.sizes.hkv;
  const auto written = [&](std::int64_t b) {
    return call_.sizes.packed ? sequence_extent(call_.inputs, b).nk : call_.sizes.nk;
  };
  std::vector<std::int64_t> first{0};  // key tiles of the wave's heads
  for (std::int64_t head = wave_.first_head; head < wave_.end_head; ++head)
    first.push_back(first.back() + (written(head / hkv) + tile - 1) / tile);
  const std::int64_t width = std::max(d_, dv_);
  Array<float> buffers(call_.threads * 2 * width);
#pragma omp parallel for schedule(dynamic, 4) num_threads(call_.threads)
  for (std::int64_t n = 0; n < first.back(); ++n) {
    const std::int64_t at = sequence_of(first, n);
    float* row = buffers.get() + omp_get_thread_num() * 2 * width;
    store_keys(wave_.first_head + at, n - first[static_cast<std::size_t>(at)], landmarks, row, row + width);
  }
}

void KeySums::store_keys(std::int64_t head, std::int64_t key_tile, const LandmarkGradients& landmarks, float* row,
                         float* work) {
  const std::int64_t b = head / call_.sizes.hkv, kv_head = head % call_.sizes.hkv;
  const SequenceExtent extent = sequence_extent(call_.inputs, b);
  const std::int64_t all = call_.sizes.packed ? extent.nk : call_.sizes.nk;
  const std::int64_t begin = key_tile * tile, end = std::min(all, begin + tile);
  const bool used = begin < extent.nk && used_[key_tile_of(head, key_tile)];
  const auto write = [&](const TensorView& gradient, std::int64_t width, double scale, auto&& sum,
                         auto&& through_lists) {
    if (!gradient.present()) return;
    const Rows rows(call_.kernels, sequence_rows(gradient, call_.sizes.packed, b, extent.k_start, all));
    for (std::int64_t j = begin; j < end; ++j) {
      if (j + rows_ahead < end) rows.prefetch(kv_head, j + rows_ahead, j + rows_ahead + 1);
      float* total = rows.in_place() ? rows.at<float>(kv_head, j) : row;
      if (used && j < extent.nk) {
        const float* hi = sum(j);
        for (std::int64_t c = 0; c < 2 * width; c += 16) __builtin_prefetch(hi + rows_ahead * 2 * width + c);
        call_.kernels.finish(nullptr, hi, hi + width, 1.0f, total, width);
      } else {
        std::fill(total, total + width, 0.0f);
      }
      if (const float* more = j < extent.nk ? through_lists(j) : nullptr)
        for (std::int64_t c = 0; c < width; ++c) total[c] += more[c] + more[width + c];
      if (scale != 1) {
        call_.kernels.scaled(total, scale, total, width);
        std::for_each(total, total + width, [](float& x) { x += 0.0f; });  // -0 becomes 0
      }
      if (total == row) rows.write(kv_head, j, row, work);
    }
  };
  write(
      call_.gradients.dk, d_, call_.scale, [&](std::int64_t j) { return dk(b, kv_head, j); },
      [&](std::int64_t j) { return landmarks.dk(b, kv_head, j); });
  write(
      call_.gradients.dv, dv_, 1, [&](std::int64_t j) { return dv(b, kv_head, j); },
      [&](std::int64_t j) { return landmarks.dv(b, kv_head, j); });
}

}  // namespace dsalt::internal
