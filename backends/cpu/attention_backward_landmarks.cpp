// The landmark part of attention's backward, for keys that lists admitted:
//
//   dk_l += scale sum ds_il q_i,   dv_l += sum P_il keep_il do_i       over the rows i that reach l through a list
//   dlambda_slot = sum ds_il                                           over the rows (and heads, when Hl = 1) of a list
//
// The query pass leaves the sums of each (row tile, list), or their weights, as a block. A thread that walks all row
// tiles of a head adds a tile's blocks up as soon as they are there. Otherwise a round of blocks is added up key-outer:
// every (key/value head, group of keys) is one task that walks the blocks in tile order, so no two threads meet in a
// sum. The order of additions is the same, whatever the rounds and threads. Only keys that some list holds have sums.
#include <omp.h>

#include "attention_backward.hpp"

namespace dsalt::internal {
namespace {

constexpr std::int64_t round_bytes = 32 << 20;

}  // namespace

struct LandmarkGradients::Scratch {
  explicit Scratch(const BackwardCall& call) : q(tile * padded(call.sizes.d)), dout(tile * padded(call.sizes.dv)) {}
  Array<float> q, dout;
};

LandmarkGradients::LandmarkGradients(const BackwardCall& call)
    : call_(call), d_(padded(call.sizes.d)), dv_(padded(call.sizes.dv)) {
  weights_ = call.gradients.dlandmark_log_weight.present();
  k_ = call.lists.slots();
  active_ = call.lists.present() && k_ > 0 && (call.wants_keys() || weights_);
  if (!active_) return;
  const auto& chunk = call.problem.landmark_chunk;
  blocks_per_tile_ = chunk ? std::min<std::int64_t>(tile, (tile - 2) / *chunk + 2) : 1;
  sums_rows_ = !chunk || *chunk >= tile;
  const std::int64_t blocks = sums_rows_ ? blocks_per_tile_ : 1;  // weights of all blocks of a tile take `tile` rows
  block_dv_size_ = call.wants_keys() ? k_ * (sums_rows_ ? dv_ : tile) : 0;
  block_dk_size_ = call.wants_keys() ? k_ * (sums_rows_ ? d_ : tile) : 0;
  const std::int64_t bytes = 4 * blocks * (block_dv_size_ + block_dk_size_) + k_ * blocks_per_tile_ * (8 + 4 + 4);
  round_ = std::max<std::int64_t>({1, call.threads, round_bytes / bytes});
  round_ = std::min(round_, std::max<std::int64_t>(1, call.first_tile.back()));
  blocks_ = Array<LandmarkBlock>::raw(round_ * blocks_per_tile_);
  used_ = Array<std::int32_t>::raw(round_);
  index_ = Array<std::int32_t>::raw(round_ * blocks_per_tile_ * k_);
  block_slot_ = Array<std::int32_t>::raw(round_ * blocks_per_tile_ * k_);
  block_sum_ = Array<double>::raw(round_ * blocks_per_tile_ * k_);
  block_dv_ = Array<float>::raw(round_ * blocks * block_dv_size_, call.pool);
  block_dk_ = Array<float>::raw(round_ * blocks * block_dk_size_, call.pool);
  if (weights_) slot_sum_ = Array<double>(call.inputs.landmarks.size());
  if (!call.wants_keys()) return;
  find_keys();
  if (sums_rows_) return;
  for (int n = 0; n < call.threads; ++n) scratch_.push_back(std::make_unique<Scratch>(call));
}

LandmarkGradients::~LandmarkGradients() = default;

void LandmarkGradients::find_keys() {
  const std::int64_t batch = call_.sizes.batch, hkv = call_.sizes.hkv;
  first_key_.assign(static_cast<std::size_t>(batch) + 1, 0);
  for (std::int64_t b = 0; b < batch; ++b)
    first_key_[static_cast<std::size_t>(b) + 1] =
        first_key_[static_cast<std::size_t>(b)] + hkv * sequence_extent(call_.inputs, b).nk;
  slot_ = Array<std::int32_t>(first_key_.back());
  first_sum_.assign(static_cast<std::size_t>(batch * hkv) + 1, 0);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call_.threads)
  for (std::int64_t n = 0; n < batch * hkv; ++n) {
    const std::int64_t b = n / hkv, kv_head = n % hkv;
    const AttentionSequence sequence = attention_sequence(call_.inputs, b);
    std::int32_t* held = slot_.get() + first_key_[static_cast<std::size_t>(b)] + kv_head * sequence.nk;
    const TensorView& lists = sequence.landmarks;
    // Only the lists that some row reads.
    const std::int64_t used =
        sequence.nq == 0 ? 0
        : call_.problem.landmark_chunk
            ? (sequence.nq - 1 + call_.problem.landmark_offset) / *call_.problem.landmark_chunk + 1
            : 1;
    const bool shared = lists.shape[0] == 1;
    const std::int64_t first = shared ? 0 : kv_head * call_.group, last = shared ? 1 : first + call_.group;
    for (std::int64_t hl = first; hl < last; ++hl)
      for (std::int64_t t = 0; t < used; ++t)
        for (std::int64_t k = 0; k < k_; ++k) {
          const std::int32_t l =
              *lists.at<std::int32_t>(hl * lists.strides[0] + t * lists.strides[1] + k * lists.strides[2]);
          if (l >= 0 && l < sequence.nk) held[l] = 1;
        }
    std::int32_t count = 0;
    for (std::int64_t j = 0; j < sequence.nk; ++j) held[j] = held[j] ? count++ : -1;
    first_sum_[static_cast<std::size_t>(n) + 1] = count;
  }
  for (std::size_t n = 1; n < first_sum_.size(); ++n) first_sum_[n] += first_sum_[n - 1];
  const std::int64_t sums = first_sum_.back();
  // Few landmarks are shared out among the threads; a key's sum does not depend on its group.
  const std::int64_t share = sums / std::max<std::int64_t>(1, 2 * call_.threads) / tile * tile;
  keys_per_task_ = std::clamp<std::int64_t>(share, tile, 512);
  key_ = Array<std::int32_t>::raw(sums);
#pragma omp parallel for schedule(dynamic, 1) num_threads(call_.threads)
  for (std::int64_t n = 0; n < batch * hkv; ++n) {
    const std::int64_t b = n / hkv, nk = sequence_extent(call_.inputs, b).nk;
    const std::int32_t* held = slot_.get() + first_key_[static_cast<std::size_t>(b)] + n % hkv * nk;
    for (std::int64_t j = 0; j < nk; ++j)
      if (held[j] >= 0) key_[first_sum_[static_cast<std::size_t>(n)] + held[j]] = static_cast<std::int32_t>(j);
  }
}

void LandmarkGradients::start_heads(std::int64_t first_head, std::int64_t end_head) {
  if (!active_ || !call_.wants_keys()) return;
  const auto sum_of_head = [&](std::int64_t head) { return first_sum_[static_cast<std::size_t>(head)]; };
  const std::int64_t sums = sum_of_head(end_head) - sum_of_head(first_head);
  const std::int64_t d = 3 * d_, dv = 3 * dv_;
  start_sum_ = sum_of_head(first_head);
  if (sums > room_) {
    dk_sum_ = {};
    dv_sum_ = {};
    dk_sum_ = Array<float>::raw(sums * d, call_.pool);
    dv_sum_ = Array<float>::raw(sums * dv, call_.pool);
    room_ = sums;
  }
#pragma omp parallel for schedule(static) num_threads(call_.threads)
  for (std::int64_t sum = 0; sum < sums; ++sum) {
    std::fill_n(dk_sum_.get() + sum * d, 2 * d_, 0.0f);
    std::fill_n(dv_sum_.get() + sum * dv, 2 * dv_, 0.0f);
  }
}

LandmarkBlock& LandmarkGradients::add(std::int64_t n, const RowTile& rows, const LandmarkRun& run,
                                      const LandmarkList& list, int count) {
  const std::int64_t at = n * blocks_per_tile_ + used_[n]++;
  LandmarkBlock& block = blocks_[at];
  block.list = run.list;
  block.query = rows.query[run.row_begin];
  block.rows = run.row_end - run.row_begin;
  block.count = count;
  const std::int64_t room = by_tile_ ? omp_get_thread_num() : n;
  if (sums_rows_) {
    const std::int64_t block_room = room * blocks_per_tile_ + at % blocks_per_tile_;
    block.dv = block_dv_.get() + block_room * block_dv_size_;
    block.dk = block_dk_.get() + block_room * block_dk_size_;
  } else {
    block.dv = block_dv_.get() + (room * tile + run.row_begin) * k_;
    block.dk = block_dk_.get() + (room * tile + run.row_begin) * k_;
  }
  block.slot_sum = block_sum_.get() + at * k_;
  block.index = index_.get() + at * k_;
  block.slot = block_slot_.get() + at * k_;
  std::copy(list.index, list.index + count, block.index);
  std::copy(list.slot, list.slot + count, block.slot);
  return block;
}

void LandmarkGradients::fold(std::int64_t first, std::int64_t count, bool folded) {
  if (call_.wants_keys() && !folded) fold_keys(first, count);
  if (weights_) fold_weights(first, count);
}

void LandmarkGradients::fold_tile(std::int64_t tile, std::int64_t n) {
  if (!call_.wants_keys()) return;
  const TilePlace place = call_.place(tile);
  const AttentionSequence sequence = attention_sequence(call_.inputs, place.b);
  const auto head = static_cast<std::size_t>(place.b * call_.sizes.hkv + place.kv_head);
  Scratch* own = sums_rows_ ? nullptr : scratch_[static_cast<std::size_t>(omp_get_thread_num())].get();
  for (std::int32_t used = 0; used < used_[n]; ++used)
    add_block(blocks_[n * blocks_per_tile_ + used], sequence, place.head, place.kv_head, 0,
              first_sum_[head + 1] - first_sum_[head], own);
}

void LandmarkGradients::fold_keys(std::int64_t first, std::int64_t count) {
  struct Task {
    std::int64_t b, kv_head, low, high, tile_begin, tile_end;  // keys [low, high) of those with sums
  };
  std::vector<Task> tasks;
  for (std::int64_t b = sequence_of(call_.first_tile, first); b < call_.sizes.batch; ++b) {
    const std::int64_t begin = call_.first_tile[static_cast<std::size_t>(b)];
    if (begin >= first + count) break;
    const std::int64_t per_kv_head = (call_.first_tile[static_cast<std::size_t>(b) + 1] - begin) / call_.sizes.hkv;
    for (std::int64_t g = 0; g < call_.sizes.hkv; ++g) {
      const std::int64_t from = std::max(first, begin + g * per_kv_head);
      const std::int64_t to = std::min(first + count, begin + (g + 1) * per_kv_head);
      const auto n = static_cast<std::size_t>(b * call_.sizes.hkv + g);
      if (from >= to) continue;
      const std::int64_t sums = first_sum_[n + 1] - first_sum_[n];
      for (std::int64_t low = 0; low < sums; low += keys_per_task_)
        tasks.push_back({b, g, low, std::min(sums, low + keys_per_task_), from, to});
    }
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(call_.threads)
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    const Task& task = tasks[n];
    const AttentionSequence sequence = attention_sequence(call_.inputs, task.b);
    Scratch* own = sums_rows_ ? nullptr : scratch_[static_cast<std::size_t>(omp_get_thread_num())].get();
    for (std::int64_t t = task.tile_begin; t < task.tile_end; ++t) {
      const std::int64_t head = call_.place(t).head;
      const LandmarkBlock* blocks = blocks_.get() + (t - first) * blocks_per_tile_;
      for (std::int32_t used = 0; used < used_[t - first]; ++used)
        add_block(blocks[used], sequence, head, task.kv_head, task.low, task.high, own);
    }
  }
}

void LandmarkGradients::add_block(const LandmarkBlock& block, const AttentionSequence& sequence, std::int64_t head,
                                  std::int64_t kv_head, std::int64_t low, std::int64_t high, Scratch* own) {
  const auto n = static_cast<std::size_t>(sequence.b * call_.sizes.hkv + kv_head);
  const std::int32_t* keys = key_.get() + first_sum_[n];
  if (low >= high) return;
  const auto begin = std::lower_bound(block.index, block.index + block.count, keys[low]) - block.index;
  const auto end = std::upper_bound(block.index, block.index + block.count, keys[high - 1]) - block.index;
  const std::int32_t* place = slot_.get() + first_key_[static_cast<std::size_t>(sequence.b)] + kv_head * sequence.nk;
  for (auto entry = begin; entry < end; entry += tile) {
    const int count = static_cast<int>(std::min<std::int64_t>(tile, end - entry));
    float *dk_rows[tile], *dv_rows[tile];
    for (int e = 0; e < count; ++e) {
      const std::int64_t sum = first_sum_[n] - start_sum_ + place[block.index[entry + e]];
      dk_rows[e] = dk_sum_.get() + sum * 3 * d_;
      dv_rows[e] = dv_sum_.get() + sum * 3 * dv_;
    }
    if (sums_rows_)
      add_sums(block, entry, count, dk_rows, dv_rows);
    else
      add_weights(block, sequence, head, entry, count, dk_rows, dv_rows, *own);
  }
}

void LandmarkGradients::add_sums(const LandmarkBlock& block, std::int64_t entry, int count, float* const* dk,
                                 float* const* dv) const {
  const auto ask = [](const float* row, std::int64_t n) {
    for (std::int64_t c = 0; c < n; c += 16) __builtin_prefetch(row + c, 1);
  };
  for (int e = 0; e < count; ++e) {
    if (const int next = e + 4; next < count) {
      if (call_.gradients.dk.present()) ask(block.dk + (entry + next) * d_, d_), ask(dk[next], 2 * d_);
      if (call_.gradients.dv.present()) ask(block.dv + (entry + next) * dv_, dv_), ask(dv[next], 2 * dv_);
    }
    if (call_.gradients.dk.present()) call_.kernels.fold(block.dk + (entry + e) * d_, dk[e], dk[e] + d_, d_, false);
    if (call_.gradients.dv.present()) call_.kernels.fold(block.dv + (entry + e) * dv_, dv[e], dv[e] + dv_, dv_, false);
  }
}

void LandmarkGradients::add_weights(const LandmarkBlock& block, const AttentionSequence& sequence, std::int64_t head,
                                    std::int64_t entry, int count, float* const* dk, float* const* dv,
                                    Scratch& own) const {
  const auto add = [&](const TensorView& view, const float* weights, std::int64_t width, float* work,
                       float* const* sums) {
    const Rows values(call_.kernels, view);
    const float* rows[tile];
    for (int r = 0; r < block.rows; ++r) rows[r] = values.read_padded(head, block.query + r, work + r * width);
    call_.kernels.accumulate_compensated(weights + entry * block.rows, 1, block.rows, rows, block.rows, width, sums,
                                         width, count, false);
  };
  if (call_.gradients.dk.present()) add(sequence.q, block.dk, d_, own.q.get(), dk);
  if (call_.gradients.dv.present())
    add(sequence.query_rows(call_.saved.dout, call_.sizes.packed), block.dv, dv_, own.dout.get(), dv);
}

void LandmarkGradients::fold_weights(std::int64_t first, std::int64_t count) {
  // Tiles that share lists are consecutive: those of a key/value head, or of a sequence when all heads share.
  const std::int64_t heads = call_.inputs.landmarks.shape[1] == 1 ? 1 : call_.sizes.hkv;
  struct Task {
    std::int64_t begin, end;
  };
  std::vector<Task> tasks;
  for (std::int64_t b = sequence_of(call_.first_tile, first); b < call_.sizes.batch; ++b) {
    const std::int64_t begin = call_.first_tile[static_cast<std::size_t>(b)];
    if (begin >= first + count) break;
    const std::int64_t per_head = (call_.first_tile[static_cast<std::size_t>(b) + 1] - begin) / heads;
    for (std::int64_t hl = 0; hl < heads; ++hl) {
      const std::int64_t from = std::max(first, begin + hl * per_head);
      const std::int64_t to = std::min(first + count, begin + (hl + 1) * per_head);
      if (from < to) tasks.push_back({from, to});
    }
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(call_.threads)
  for (std::size_t n = 0; n < tasks.size(); ++n)
    for (std::int64_t t = tasks[n].begin; t < tasks[n].end; ++t) {
      const LandmarkBlock* blocks = blocks_.get() + (t - first) * blocks_per_tile_;
      for (std::int32_t used = 0; used < used_[t - first]; ++used) {
        const LandmarkBlock& block = blocks[used];
        for (int e = 0; e < block.count; ++e) slot_sum_[block.list * k_ + block.slot[e]] += block.slot_sum[e];
      }
    }
}

void LandmarkGradients::store_weights() const {
  const TensorView& gradient = call_.gradients.dlandmark_log_weight;
  const std::int64_t heads = gradient.shape[1], lists = gradient.shape[2], total = gradient.shape[0] * heads * lists;
#pragma omp parallel for schedule(static) num_threads(call_.threads)
  for (std::int64_t list = 0; list < total; ++list) {
    const std::int64_t at = list / (heads * lists) * gradient.strides[0] + list / lists % heads * gradient.strides[1] +
                            list % lists * gradient.strides[2];
    for (std::int64_t slot = 0; slot < gradient.shape[3]; ++slot)
      store_double(gradient, at + slot * gradient.strides[3], active_ ? slot_sum_[list * k_ + slot] : 0);
  }
}

std::int64_t LandmarkGradients::sum_of(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
  if (!active_) return -1;
  const std::int64_t begin = first_key_[static_cast<std::size_t>(b)];
  const std::int64_t nk = (first_key_[static_cast<std::size_t>(b) + 1] - begin) / call_.sizes.hkv;
  const std::int32_t place = slot_[begin + kv_head * nk + j];
  return place < 0 ? -1 : first_sum_[static_cast<std::size_t>(b * call_.sizes.hkv + kv_head)] - start_sum_ + place;
}

float* LandmarkGradients::dk(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
  const std::int64_t sum = sum_of(b, kv_head, j);
  return sum < 0 ? nullptr : dk_sum_.get() + sum * 3 * d_;
}

float* LandmarkGradients::dv(std::int64_t b, std::int64_t kv_head, std::int64_t j) const {
  const std::int64_t sum = sum_of(b, kv_head, j);
  return sum < 0 ? nullptr : dv_sum_.get() + sum * 3 * dv_;
}

}  // namespace dsalt::internal
