// The attention shapes of `dsalt bench`: the numbered ones of docs/performance.md, and any that is written out.
//
//   B,H[/Hkv],N[xNk],D[,MASK[,K[/Hl]]]     MASK is full, causal, a window w, lo..hi (drawn for each token), or none
//                                           (landmarks alone); Hl is H or 1
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsalt/attention.hpp"

namespace dsalt::benchmark {

/// How the window sizes of a sparse shape are drawn, between Shape::window_low and Shape::window.
enum class Windows : std::uint8_t {
  constant,  // every token has the largest
  uniform,   // each token and head draws one, all equally likely
  bimodal,   // each token and head has the smallest or the largest, equally likely
};

struct Shape {
  int number = 0;                                                                     // in the table; 0: written out
  std::string what;                                                                   // a few words, for --list
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, width = 1;  // B Hq Hkv Nq Nk D (= Dv)
  Mask mask = Mask::sparse;
  std::int64_t window_low = 0, window = 0, landmarks = 0;  // sparse only; window -1: none
  bool shared_lists = false;                               // Hl = 1
  Windows windows = Windows::constant;
  std::int64_t chunk = 0;      // rows per landmark list; 0: one list for all rows
  std::int64_t page_size = 0;  // keys of a page of the cache; 0: the cache is in one piece

  bool sparse() const { return mask == Mask::sparse; }
  std::int64_t list_heads() const { return shared_lists ? 1 : heads; }
  std::int64_t model_width() const { return heads * width; }
  std::int64_t tokens() const { return batch * queries; }
  std::int64_t pages() const { return (keys + page_size - 1) / page_size; }  // of a sequence, where paged
};

/// Shapes 1 to 12, windows and lists not yet settled.
const std::vector<Shape>& numbered_shapes();

/// A number of the table or a shape written out. InvalidArgument says what is needed.
Shape parse_shape(const std::string& text);

/// Settles windows ("" keeps the shape's own: constant, except where the table or lo..hi says uniform) and lists:
/// chunks are for self-attention only, any other shape has one list. InvalidArgument.
Shape settled(Shape shape, const std::string& windows, std::int64_t chunk);

/// Each shape, and behind it the same with a cache in pages of every size.
std::vector<Shape> with_pages(const std::vector<Shape>& shapes, const std::vector<std::int64_t>& page_sizes);

/// "1,8,8192,64,256,32": read back by parse_shape.
std::string to_string(const Shape& shape);
/// The same with what `settled` decided: "1,8,8192,64,256,32 constant chunk 128", and pages.
std::string full_name(const Shape& shape);

}  // namespace dsalt::benchmark
