// Rows of the caller's tensors as the attention passes read and write them, whatever their dtype and strides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsalt/tensor.hpp"
#include "kernels.hpp"

namespace dsalt::internal {

/// Rounded up to whole lane groups.
inline std::int64_t padded(std::int64_t n) { return (n + lane_group - 1) / lane_group * lane_group; }
inline int lanes_begin(int row) { return row / lane_group * lane_group; }
inline int lanes_end(int row) { return (row + lane_group - 1) / lane_group * lane_group; }

/// Rows of a [heads, tokens, channels] view of float32, bfloat16 or float16 as contiguous float32, and back.
class Rows {
 public:
  Rows(const Kernels& kernels, const TensorView& view) : kernels_(kernels), view_(view) {}
  /// Rows to be read: with a page table the view is [heads, pages, rows, channels], and row t % rows of the page that
  /// entry t / rows names is token t.
  Rows(const Kernels& kernels, const TensorView& view, const TensorView& page_table) : Rows(kernels, view) {
    if (!page_table.present()) return;
    table_ = page_table;
    page_rows_ = view.shape[2];
    page_stride_ = view.strides[1];
    view_.rank = 3;  // not select(), since there may be no page
    view_.shape = {view.shape[0], view.shape[2], view.shape[3]};
    view_.strides = {view.strides[0], view.strides[2], view.strides[3]};
  }
  std::int64_t channels() const { return view_.shape[2]; }

  /// The row's first element, for rows that are contiguous and of that type.
  template <class T>
  T* at(std::int64_t head, std::int64_t token) const {
    return view_.at<T>(offset(head, token));
  }
  const char* address(std::int64_t head, std::int64_t token) const {
    return view_.at<char>(offset(head, token) * static_cast<std::int64_t>(size_of(view_.dtype)));
  }
  std::int64_t row_bytes() const { return channels() * static_cast<std::int64_t>(size_of(view_.dtype)); }
  bool paged() const { return page_rows_ > 0; }
  /// Of tokens that are not paged.
  std::int64_t token_bytes() const { return view_.strides[1] * static_cast<std::int64_t>(size_of(view_.dtype)); }
  std::int64_t head_bytes() const { return view_.strides[0] * static_cast<std::int64_t>(size_of(view_.dtype)); }
  /// Whether every row is contiguous float32 of whole lane groups.
  bool in_place() const { return view_.dtype == DType::f32 && view_.strides[2] == 1 && channels() % lane_group == 0; }
  /// to[n] = at<T>(head, token_of(n)), n in [begin, end).
  template <class T, class TokenOf>
  void addresses(std::int64_t head, int begin, int end, TokenOf&& token_of, const T** to) const {
    const std::int64_t stride = view_.strides[1];
    if (!paged()) {
      const T* const rows = at<T>(head, 0);
      for (int n = begin; n < end; ++n) to[n] = rows + token_of(n) * stride;
      return;
    }
    std::int64_t run_begin = 0, run_end = 0;  // tokens `stride` apart, from `first` on
    const T* first = nullptr;
    for (int n = begin; n < end; ++n) {
      const std::int64_t token = token_of(n);
      if (token < run_begin || token >= run_end) {
        run_begin = token / page_rows_ * page_rows_;
        run_end = run_begin + page_rows_;
        first = at<T>(head, run_begin);
      }
      to[n] = first + (token - run_begin) * stride;
    }
  }
  /// to[n] = at<T>(head, token + n - begin), n in [begin, end), of rows that are not paged.
  template <class T>
  void addresses_from(std::int64_t head, int begin, int end, std::int64_t token, const T** to) const {
    const T* const first = at<T>(head, token);
    const std::int64_t stride = view_.strides[1];
    const T** const rows = to + begin;
    for (std::int64_t n = 0; n < end - begin; ++n) rows[n] = first + n * stride;
  }
  /// Asks for rows [begin, end) before they are needed: tiles are met in an order that the processor does not foresee.
  void prefetch(std::int64_t head, std::int64_t begin, std::int64_t end) const;

  /// Whether every row is contiguous and of even length, so that read_bits gives it in place.
  bool pairs_in_place() const { return view_.strides[2] == 1 && channels() % 2 == 0; }

  /// The row in place when it is contiguous float32, otherwise converted into `buffer`.
  const float* read(std::int64_t head, std::int64_t token, float* buffer) const;
  /// The same, readable up to padded(channels), zero past the channels.
  const float* read_padded(std::int64_t head, std::int64_t token, float* buffer) const;
  /// A 16-bit row, followed by a 0 when its length is odd: in place, or in `buffer`.
  const std::uint16_t* read_bits(std::int64_t head, std::int64_t token, std::uint16_t* buffer) const;
  /// Rounds to nearest even. `work` holds padded(channels) floats.
  void write(std::int64_t head, std::int64_t token, const float* row, float* work) const;

 private:
  std::int64_t offset(std::int64_t head, std::int64_t token) const {
    if (!paged()) return head * view_.strides[0] + token * view_.strides[1];
    const std::int64_t entry = token / page_rows_, page = *table_.at<std::int32_t>(entry * table_.strides[0]);
    return page * page_stride_ + head * view_.strides[0] + (token - entry * page_rows_) * view_.strides[1];
  }
  const Kernels& kernels_;
  TensorView view_;  // paged: of page 0
  TensorView table_;
  std::int64_t page_rows_ = 0, page_stride_ = 0;  // 0 rows: not paged
};

/// Asks for values [begin, end) of a head of a [heads, tokens] view, whether or not they exist.
void prefetch_row_values(const TensorView& view, std::int64_t head, std::int64_t begin, std::int64_t end);

/// Asks for the rows that a thread will need after its present row tile, piece by piece between its own steps: the
/// caches take few requests at once, and the processor does not foresee the order of tiles.
class Prefetcher {
 public:
  void clear() { count_ = 0; }
  /// Tokens [begin, end) of a head, cut to those below `limit` and from 0 on.
  void add(const Rows& rows, std::int64_t head, std::int64_t begin, std::int64_t end, std::int64_t limit) {
    begin = std::max<std::int64_t>(begin, 0);
    end = std::min(end, limit);
    if (begin < end) add({&rows, head, begin, end, nullptr});
  }
  /// Tokens index[0], ..., index[count - 1] of a head.
  void add(const Rows& rows, std::int64_t head, const std::int32_t* index, std::int64_t count) {
    if (count > 0) add({&rows, head, 0, count, index});
  }
  /// The next piece, or `most` tokens of it.
  void step(std::int64_t most = INT64_MAX) {
    for (int n = 0; n < count_; ++n) {
      Piece& piece = pieces_[n];
      if (piece.begin >= piece.end) continue;
      const std::int64_t end = std::min(piece.end - piece.begin, most) + piece.begin;
      if (piece.index)
        for (std::int64_t at = piece.begin; at < end; ++at)
          piece.rows->prefetch(piece.head, piece.index[at], piece.index[at] + 1);
      else
        piece.rows->prefetch(piece.head, piece.begin, end);
      piece.begin = end;
      return;
    }
  }

 private:
  static constexpr int most_pieces = 8;
  struct Piece {
    const Rows* rows;
    std::int64_t head, begin, end;
    const std::int32_t* index;
  };
  void add(const Piece& piece) {
    int n = 0;
    while (n < count_ && pieces_[n].begin < pieces_[n].end) ++n;  // the first that is done, or a new one
    if (n == most_pieces) return;
    pieces_[n] = piece;
    count_ = std::max(count_, n + 1);
  }
  Piece pieces_[most_pieces];
  int count_ = 0;
};

}  // namespace dsalt::internal
