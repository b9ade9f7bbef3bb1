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
  place_ = Array<std::int32_t>::raw(most_key_tiles);
  free_ = Array<std::int32_t>::raw(most_key_tiles);
  left_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(most_tiles));
  passed_ = std::make_unique<std::atomic<std::int64_t>[]>(static_cast<std::size_t>(most_tiles));
}

std::int64_t KeySums::tile_of_head(std::int64_t head) const {
  const std::int64_t b = head / call_.sizes.hkv, kv_head = head % call_.sizes.hkv;
  if (b == call_.sizes.batch) return call_.first_tile.back();
  return call_.first_tile[static_cast<std::size_t>(b)] +
         kv_head * call_.group * call_.tiles(sequence_extent(call_.inputs, b).nq);
}

void KeySums::start(const Wave& wave, bool walked) {
  wave_ = wave;
  if (!active_) return;
  for (std::int64_t n = 0; n < wave.end_tile - wave.first_tile; ++n)
    for (auto* of : {&left_, &passed_})
      (*of)[static_cast<std::size_t>(n)].store(std::numeric_limits<std::int64_t>::max(), std::memory_order_relaxed);
  std::fill_n(used_.get(), key_tile_of(wave.end_head, 0), std::uint8_t{0});
  walks_.assign(static_cast<std::size_t>(wave.end_head - wave.first_head), {});
  for (std::int64_t head = wave.first_head; head < wave.end_head; ++head) {
    const std::int64_t nk = sequence_extent(call_.inputs, head / call_.sizes.hkv).nk;
    for (std::int64_t n = 0; n < call_.tiles(nk); ++n)
      place_[key_tile_of(head, n)] = walked && n < nk / tile ? -1 : static_cast<std::int32_t>(n);
  }
}

bool KeySums::first(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) {
  const std::int64_t head = b * call_.sizes.hkv + kv_head, at = key_tile_of(head, key_tile);
  if (std::exchange(used_[at], std::uint8_t{1}) != 0) return false;
  if (place_[at] < 0) {
    Walk& walk = walks_[static_cast<std::size_t>(head - wave_.first_head)];
    place_[at] = walk.free > 0 ? free_[key_tile_of(head, --walk.free)] : walk.taken++;
  }
  return true;
}

void KeySums::retire(std::int64_t b, std::int64_t kv_head, std::int64_t lowest, const LandmarkGradients& landmarks,
                     float* row, float* work) {
  const std::int64_t head = b * call_.sizes.hkv + kv_head, nk = sequence_extent(call_.inputs, b).nk;
  const std::int64_t end = lowest >= nk ? call_.tiles(nk) : lowest / tile;
  Walk& walk = walks_[static_cast<std::size_t>(head - wave_.first_head)];
  for (; walk.stored < end; ++walk.stored) {
    const std::int64_t at = key_tile_of(head, walk.stored);
    store_keys(head, walk.stored, landmarks, true, row, work);
    if (used_[at] && walk.stored < nk / tile) free_[key_tile_of(head, walk.free++)] = place_[at];
  }
}

void KeySums::clear(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) {
  const std::int64_t begin = key_tile * tile;
  const std::int64_t count = std::min<std::int64_t>(tile, sequence_extent(call_.inputs, b).nk - begin);
  if (dk_sum_.get()) std::fill_n(dk(b, kv_head, key_tile), count * 2 * d_, 0.0f);
  if (dv_sum_.get()) std::fill_n(dv(b, kv_head, key_tile), count * 2 * dv_, 0.0f);
}

float* KeySums::dk(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) const {
  return dk_sum_.get() + row_of(b, kv_head, key_tile) * 2 * d_;
}

float* KeySums::dv(std::int64_t b, std::int64_t kv_head, std::int64_t key_tile) const {
  return dv_sum_.get() + row_of(b, kv_head, key_tile) * 2 * dv_;
}

void KeySums::prefetch(std::int64_t b, std::int64_t kv_head, std::int64_t begin, std::int64_t end) const {
  if (!active_ || place_[key_tile_of(b * call_.sizes.hkv + kv_head, begin / tile)] < 0) return;
  const auto ask = [](const float* from, std::int64_t count) {
    for (std::int64_t n = 0; n < count; n += 16) __builtin_prefetch(from + n, 1, 2);
  };
  if (dk_sum_.get()) ask(dk(b, kv_head, begin / tile), (end - begin) * 2 * d_);
  if (dv_sum_.get()) ask(dv(b, kv_head, begin / tile), (end - begin) * 2 * dv_);
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
    const std::int64_t head = wave_.first_head + at, key_tile = n - first[static_cast<std::size_t>(at)];
    if (key_tile < walks_[static_cast<std::size_t>(at)].stored)
      store_held(head, key_tile, landmarks, row, row + width);
    else
      store_keys(head, key_tile, landmarks, false, row, row + width);
  }
}

Rows KeySums::rows(const TensorView& gradient, std::int64_t b) const {
  const SequenceExtent extent = sequence_extent(call_.inputs, b);
  const std::int64_t all = call_.sizes.packed ? extent.nk : call_.sizes.nk;
  return {call_.kernels, sequence_rows(gradient, call_.sizes.packed, b, extent.k_start, all)};
}

namespace {

/// A row's total before it is written: what came through lists is added (hi and lo, or null), then it is scaled.
void complete(const Kernels& kernels, float* total, std::int64_t width, double scale, const float* lists) {
  if (lists)
    for (std::int64_t c = 0; c < width; ++c) total[c] += lists[c] + lists[width + c];
  if (scale == 1) return;
  kernels.scaled(total, scale, total, width);
  std::for_each(total, total + width, [](float& x) { x += 0.0f; });  // -0 becomes 0
}

}  // namespace

void KeySums::store_keys(std::int64_t head, std::int64_t key_tile, const LandmarkGradients& landmarks, bool lists_later,
                         float* row, float* work) {
  const std::int64_t b = head / call_.sizes.hkv, kv_head = head % call_.sizes.hkv;
  const SequenceExtent extent = sequence_extent(call_.inputs, b);
  const std::int64_t all = call_.sizes.packed ? extent.nk : call_.sizes.nk;
  const std::int64_t begin = key_tile * tile, end = std::min(all, begin + tile);
  const bool used = begin < extent.nk && used_[key_tile_of(head, key_tile)];
  const auto write = [&](const TensorView& gradient, std::int64_t width, double scale, const float* sums,
                         auto&& through_lists) {
    if (!gradient.present()) return;
    const Rows to = rows(gradient, b);
    for (std::int64_t j = begin; j < end; ++j) {
      if (j + rows_ahead < end) to.prefetch(kv_head, j + rows_ahead, j + rows_ahead + 1);
      float* const lists = j < extent.nk ? through_lists(j) : nullptr;
      const bool waits = lists_later && lists;
      float* total = waits ? lists + 2 * width : to.in_place() ? to.at<float>(kv_head, j) : row;
      if (used && j < extent.nk) {
        const float* hi = sums + (j - begin) * 2 * width;
        for (std::int64_t c = 0; c < 2 * width; c += 16) __builtin_prefetch(hi + rows_ahead * 2 * width + c);
        call_.kernels.finish(nullptr, hi, hi + width, 1.0f, total, width);
      } else {
        std::fill(total, total + width, 0.0f);
      }
      if (waits) continue;
      complete(call_.kernels, total, width, scale, lists);
      if (total == row) to.write(kv_head, j, row, work);
    }
  };
  write(call_.gradients.dk, d_, call_.scale, used && dk_sum_.get() ? dk(b, kv_head, key_tile) : nullptr,
        [&](std::int64_t j) { return landmarks.dk(b, kv_head, j); });
  write(call_.gradients.dv, dv_, 1, used && dv_sum_.get() ? dv(b, kv_head, key_tile) : nullptr,
        [&](std::int64_t j) { return landmarks.dv(b, kv_head, j); });
}

void KeySums::store_held(std::int64_t head, std::int64_t key_tile, const LandmarkGradients& landmarks, float* row,
                         float* work) {
  const std::int64_t b = head / call_.sizes.hkv, kv_head = head % call_.sizes.hkv, begin = key_tile * tile;
  const auto write = [&](const TensorView& gradient, std::int64_t width, double scale, auto&& through_lists) {
    if (!gradient.present()) return;
    const Rows to = rows(gradient, b);
    landmarks.for_each_key(b, kv_head, begin, begin + tile, [&](std::int64_t j) {
      const float* lists = through_lists(j);
      std::copy_n(lists + 2 * width, width, row);
      complete(call_.kernels, row, width, scale, lists);
      if (to.in_place())
        std::copy_n(row, width, to.at<float>(kv_head, j));
      else
        to.write(kv_head, j, row, work);
    });
  };
  write(call_.gradients.dk, d_, call_.scale, [&](std::int64_t j) { return landmarks.dk(b, kv_head, j); });
  write(call_.gradients.dv, dv_, 1, [&](std::int64_t j) { return landmarks.dv(b, kv_head, j); });
}

}  // namespace dsalt::internal
