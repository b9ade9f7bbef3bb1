// See attention_products.hpp.
#include "attention_products.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsalt::internal {

bool runs_as_pairs(const Kernels& kernels, const AttentionInputs& inputs, double scale) {
  return kernels.scores_pairs && inputs.q.dtype == DType::bf16 && std::fabs(scale) <= 0x1p64;
}

Operand::Operand(const Kernels& kernels, bool pairs, std::int64_t channels)
    : kernels_(kernels),
      pairs_(pairs),
      channels_(channels),
      width_(padded(channels)),
      buffer_(tile * width_),
      bits_(pairs ? tile * width_ : 0),
      paired_(pairs ? tile / 2 * width_ : 0) {}

void Operand::prepare_sums(int begin, int end) {
  if (!pairs_) return;
  exceptional_ = kernels_.interleave(narrow_ + begin, end - begin, channels_, paired_.get() + begin / 2 * width_);
  if (exceptional_) read_exceptional(begin, end);
}

void Operand::read_exceptional(int begin, int end) {
  for (int n = begin; n < end; ++n) {
    float* row = buffer_.get() + n * width_;
    kernels_.exceptional_row(narrow_[n], channels_, row);
    rows_[n] = row;
  }
}

const float* Operand::row(int n, float* work) const {
  if (!pairs_) return rows_[n];
  kernels_.widen_bf16(narrow_[n], work, channels_);
  return work;
}

Packed::Packed(const Kernels& kernels, bool pairs, std::int64_t channels)
    : kernels_(kernels),
      pairs_(pairs),
      channels_(pairs ? (channels + 1) / 2 : channels),
      data_(tile * channels_),
      scaled_(pairs ? 0 : most_rows * padded(channels)) {}

void Packed::pack(const Operand& rows, int count, double scale) {
  factor_ = scale;
  count_ = count;
  for (int n = 0; n < count; ++n) rows_[n] = pairs_ ? static_cast<const void*>(rows.narrow_[n]) : rows.rows_[n];
  kernels_.transpose(rows_, count, channels_, data_.get());
  if (pairs_ || scale == 1) return;
  auto* packed = reinterpret_cast<float*>(data_.get());
  const int lanes = lanes_end(count);
  if (lanes == tile)
    kernels_.scaled(packed, scale, packed, channels_ * tile);
  else
    for (std::int64_t c = 0; c < channels_; ++c) kernels_.scaled(packed + c * tile, scale, packed + c * tile, lanes);
}

const void* const* Packed::rows(int begin, int end) {
  if (pairs_ || factor_ == 1) return rows_ + begin;
  const std::int64_t width = padded(channels_);
  for (int n = begin; n < end; ++n) {
    float* row = scaled_.get() + (n - begin) * width;
    kernels_.scaled(static_cast<const float*>(rows_[n]), factor_, row, channels_);
    scaled_rows_[n - begin] = row;
  }
  return scaled_rows_;
}

Products::Products(const Kernels& kernels, bool pairs)
    : kernels_(kernels), pairs_(pairs), weights_(pairs ? tile * tile / 2 : 0) {}

void Products::scores(Packed& packed, const Operand& keys, int key_begin, int key_end, int row_begin, int row_end,
                      float* s, float* highest) {
  const int count = key_end - key_begin;
  float* out = s + key_begin * tile;
  row_end = std::min(row_end, packed.count_);
  const int lane_begin = lanes_begin(row_begin), lane_end = lanes_end(row_end);
  const auto factor = static_cast<float>(packed.factor_);
  if (row_end - row_begin <= few_rows) {
    alignas(64) float rows[few_rows * tile];
    row_scores(packed, keys, key_begin, key_end, row_begin, row_end, 0, rows);
    for (int r = row_begin; r < row_end; ++r)
      for (int n = 0; n < count; ++n) out[n * tile + r] = rows[(r - row_begin) * tile + n];
    if (highest) std::fill(highest + lane_begin, highest + lane_end, std::numeric_limits<float>::infinity());
  } else if (pairs_) {
    kernels_.scores_pairs(packed.data_.get(), keys.narrow_ + key_begin, count, packed.channels_, factor, lane_begin,
                          lane_end, out, highest);
  } else {
    kernels_.scores(reinterpret_cast<const float*>(packed.data_.get()), keys.rows_ + key_begin, count, packed.channels_,
                    lane_begin, lane_end, out, highest);
  }
}

void Products::row_scores(Packed& packed, const Operand& keys, int key_begin, int key_end, int row_begin, int row_end,
                          std::int64_t ahead, float* s) const {
  const int count = row_end - row_begin, key_count = key_end - key_begin;
  const void* const* rows = packed.rows(row_begin, row_end);
  if (pairs_)
    kernels_.row_scores_pairs(rows, count, keys.narrow_ + key_begin, key_count, packed.channels_,
                              static_cast<float>(packed.factor_), ahead, s);
  else
    kernels_.row_scores(rows, count, keys.rows_ + key_begin, key_count, packed.channels_, ahead, s);
}

bool Products::row_softmax(float* s, int r, int count, SoftmaxRows& state) {
  float* row = s + r * tile;
  return pairs_
             ? kernels_.row_softmax_pairs(row, count, state.m + r, state.sum + r, state.sum_lo + r, state.rounded + r,
                                          state.rounded_lo + r, state.alpha + r, weights_.get() + r * tile / 2)
             : kernels_.row_softmax(row, count, state.m + r, state.sum + r, state.sum_lo + r, state.alpha + r);
}

void Products::row_sums(const float* w, Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                        const AheadOfGroups& ahead, RowSums& out) {
  const int keys = key_end - key_begin, rows = row_end - row_begin;
  float* const* sums = out.running(row_begin, row_end);
  bool exceptional = false;
  // The kernels add key by key to the running sums, or group by group: the bits are the same however many of these they
  // get at a time.
  const int group = pairs_ ? 2 * kernels_.group_pairs : 1, step = std::max(group, lane_group);
  for (int begin = 0, end; begin < keys; begin = end) {
    const std::int64_t bytes = ahead.bytes[begin / lane_group];
    end = begin + step - (key_begin + begin) % group;
    while (end < keys && ahead.bytes[end / lane_group] == bytes) end += step;
    end = std::min(end, keys);
    if (!pairs_)
      kernels_.row_accumulate(w + row_begin * tile + begin, tile, values.rows_ + key_begin + begin, end - begin,
                              values.width_, bytes, sums, rows);
    else if (kernels_.row_accumulate_pairs(weights_.get() + (row_begin * tile + begin) / 2, tile / 2,
                                           values.narrow_ + key_begin + begin, (key_begin + begin) / 2, end - begin,
                                           values.channels_, bytes, sums, rows))
      exceptional = true;
  }
  if (!exceptional) return;
  values.read_exceptional(key_begin, key_end);
  kernels_.accumulate_compensated(w + row_begin * tile, 1, tile, values.rows_ + key_begin, keys, values.width_,
                                  out.compensated(row_begin, row_end), out.lo_offset(), rows, false);
}

void Products::scores(Packed& packed, const Operand& keys, const TileMask& mask, float* s, float* highest) {
  for_each_key_group(mask, [&](int key_begin, int key_end, int lane_begin, int lane_end) {
    scores(packed, keys, key_begin, key_end, lane_begin, lane_end, s, highest);
  });
}

void Products::sum_keys(const float* w, const Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                        RowSums& out) {
  const int keys = key_end - key_begin;
  const float* weights = w + key_begin * tile;
  if (pairs_) {
    kernels_.pair_rows(weights, keys, lanes_begin(row_begin), lanes_end(row_end), weights_.get());
    sum_paired_keys(w, values, key_begin, key_end, row_begin, row_end, out);
  } else {
    out.add(row_begin, row_end, [&](int begin, int end, float* const* sums, bool starts) {
      if (starts)
        kernels_.accumulate_compensated(weights + begin, tile, 1, values.rows_ + key_begin, keys, values.width_, sums,
                                        0, end - begin, true);
      else
        kernels_.accumulate(weights + begin, tile, 1, values.rows_ + key_begin, keys, values.width_, sums, end - begin);
    });
  }
}

void Products::sum_paired_keys(const float* w, const Operand& values, int key_begin, int key_end, int row_begin,
                               int row_end, RowSums& out) {
  const int keys = key_end - key_begin, rows = row_end - row_begin;
  const std::uint32_t* paired = values.paired_.get() + key_begin / 2 * values.width_;
  out.add(row_begin, row_end, [&](int begin, int end, float* const* sums, bool starts) {
    if (starts)
      kernels_.accumulate_pairs_compensated(weights_.get() + begin, tile, 1, paired, key_begin / 2, (keys + 1) / 2,
                                            values.width_, 1, sums, 0, end - begin, true);
    else
      kernels_.accumulate_pairs(weights_.get() + begin, tile, 1, paired, key_begin / 2, (keys + 1) / 2, values.width_,
                                sums, end - begin);
  });
  // Not into the plain sum, which the next product of pairs would flush to 0 if it were subnormal.
  if (values.exceptional_)
    kernels_.accumulate_compensated(w + key_begin * tile + row_begin, tile, 1, values.rows_ + key_begin, keys,
                                    values.width_, out.compensated(row_begin, row_end), out.lo_offset(), rows, false);
}

void Products::sum_rows(const float* w, const Operand& values, int key_begin, int key_end, int row_begin, int row_end,
                        float* const* out, std::int64_t lo_offset, bool first) {
  const int keys = key_end - key_begin, rows = row_end - row_begin;
  const float* weights = w + key_begin * tile;
  const auto in_float32 = [&](bool is_first) {
    kernels_.accumulate_compensated(weights + row_begin, 1, tile, values.rows_ + row_begin, rows, values.width_,
                                    out + key_begin, lo_offset, keys, is_first);
  };
  if (!pairs_) return in_float32(first);
  const std::uint64_t faint = kernels_.pair_lanes(weights, keys, row_begin, lanes_end(row_end), weights_.get());
  const auto is_faint = [faint](int key) { return (faint >> key & 1) != 0; };
  for (int begin = 0, end; begin < keys; begin = end) {
    end = faint == 0 ? keys : begin + 1;
    while (end < keys && is_faint(end) == is_faint(begin)) ++end;
    kernels_.accumulate_pairs_compensated(weights_.get() + begin * tile / 2 + row_begin / 2, 1, tile / 2,
                                          values.paired_.get() + row_begin / 2 * values.width_, row_begin / 2,
                                          (rows + 1) / 2, values.width_, is_faint(begin) ? faint_unit : 1,
                                          out + key_begin + begin, lo_offset, end - begin, first);
  }
  if (values.exceptional_) in_float32(false);
}

void SoftmaxRows::clear() {
  std::fill(m, m + tile, -std::numeric_limits<float>::infinity());
  for (float* sums : {sum, sum_lo, rounded, rounded_lo}) std::fill(sums, sums + tile, 0.0f);
}

RowSums::RowSums(const Kernels& kernels, std::int64_t width)
    : kernels_(kernels), width_(width), data_(3 * tile * width) {
  for (int r = 0; r < tile; ++r) {
    running_[r] = data_.get() + r * width_;
    compensated_[r] = running_[r] + tile * width_;
  }
}

void RowSums::clear() {
  std::fill(fresh_, fresh_ + tile, true);
  std::fill(empty_, empty_ + tile, true);
  group_ = -1;
}

float* const* RowSums::running(int begin, int end) {
  for (int r = begin; r < end; ++r) {
    if (!fresh_[r]) continue;
    std::fill_n(running_[r], width_, 0.0f);
    fresh_[r] = false;
  }
  return running_ + begin;
}

float* const* RowSums::compensated(int begin, int end) {
  for (int r = begin; r < end; ++r) {
    if (!empty_[r]) continue;
    std::fill_n(compensated_[r], width_, 0.0f);
    std::fill_n(compensated_[r] + lo_offset(), width_, 0.0f);
    empty_[r] = false;
  }
  return compensated_ + begin;
}

void RowSums::fold(int begin, int end) {
  for (int to; begin < end; begin = to) {
    to = begin + 1;
    while (to < end && fresh_[to] == fresh_[begin] && empty_[to] == empty_[begin]) ++to;
    if (fresh_[begin]) continue;
    kernels_.fold(running_[begin], compensated_[begin], compensated_[begin] + lo_offset(), (to - begin) * width_,
                  empty_[begin]);
    std::fill(fresh_ + begin, fresh_ + to, true);
    std::fill(empty_ + begin, empty_ + to, false);
  }
  group_ = -1;
}

void RowSums::rescale(int row, float factor) {
  if (!fresh_[row]) kernels_.scale_row(running_[row], factor, width_);
  if (empty_[row]) return;
  for (const std::int64_t lo : {std::int64_t{0}, lo_offset()})
    kernels_.scale_row(compensated_[row] + lo, factor, width_);
}

void RowSums::finish(int row, float divisor, float* y) const {
  if (fresh_[row] && empty_[row]) {
    std::fill_n(y, width_, 0.0f);
    return;
  }
  const float* hi = empty_[row] ? nullptr : compensated_[row];
  kernels_.finish(fresh_[row] ? nullptr : running_[row], hi, hi ? hi + lo_offset() : nullptr, divisor, y, width_);
}

}  // namespace dsalt::internal
