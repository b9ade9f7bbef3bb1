#include "bench/shape.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "dsalt/errors.hpp"

namespace dsalt::benchmark {
namespace {

constexpr std::int64_t low_share = 16;  // the smallest window is this part of the largest one

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw InvalidArgument("--shape: got \"" + text + "\", " + why + "; need a number from 1 to " +
                        std::to_string(numbered_shapes().size()) +
                        " (see dsalt bench --list) or B,H[/Hkv],N[xNk],D[,full|causal|none|w|lo..hi[,K[/Hl]]]");
}

std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

struct Parser {
  const std::string& text;

  std::int64_t number(std::string_view part, const char* name, std::int64_t low, std::int64_t high) const {
    const auto value = whole_number(part);
    if (!value || *value < low || *value > high)
      refuse(text, std::string(name) + " is \"" + std::string(part) + "\", not a whole number from " +
                       std::to_string(low) + " to " + std::to_string(high));
    return *value;
  }

  /// "a" or "a<separator>b".
  std::vector<std::string_view> one_or_two(std::string_view part, std::string_view separator, const char* name) const {
    auto parts = split(part, separator);
    if (parts.size() > 2) refuse(text, std::string(name) + " has more than two parts");
    return parts;
  }

  Shape parse() const {
    constexpr std::int64_t most = std::int64_t{1} << 24;
    const auto parts = split(text, ",");
    if (parts.size() < 4 || parts.size() > 6)
      refuse(text, "which has " + std::to_string(parts.size()) + (parts.size() == 1 ? " part" : " parts"));
    Shape shape;
    shape.what = "as given";
    shape.batch = number(parts[0], "B", 1, most);
    const auto heads = one_or_two(parts[1], "/", "H");
    shape.heads = number(heads.front(), "H", 1, most);
    shape.kv_heads = number(heads.back(), "Hkv", 1, most);
    if (shape.heads % shape.kv_heads != 0) refuse(text, "where Hkv does not divide H");
    const auto lengths = one_or_two(parts[2], "x", "N");
    shape.queries = number(lengths.front(), "N", 1, most);
    shape.keys = number(lengths.back(), "Nk", 1, most);
    shape.width = number(parts[3], "D", 1, 4096);
    double elements = 1;  // B H N D, of each tensor
    for (const std::int64_t size : {shape.batch, shape.heads, std::max(shape.queries, shape.keys), shape.width})
      elements *= static_cast<double>(size);
    if (elements > 0x1p48) refuse(text, "where B H N D is more than 2^48");
    shape.mask = parts.size() == 4 || parts[4] == "causal" ? Mask::causal
                 : parts[4] == "full"                      ? Mask::full
                                                           : Mask::sparse;
    if (parts.size() < 5) return shape;
    if (parts[4] == "none") {
      shape.window = shape.window_low = -1;
    } else if (shape.sparse()) {
      const auto windows = one_or_two(parts[4], "..", "w");
      shape.window = number(windows.back(), "w", 0, most);
      shape.window_low = shape.window / low_share;
      if (windows.size() == 2) {
        shape.window_low = number(windows.front(), "w", 0, shape.window);
        shape.windows = Windows::uniform;
      }
    }
    if (parts.size() == 6) {
      const auto lists = one_or_two(parts[5], "/", "K");
      shape.landmarks = number(lists.front(), "K", 0, 1 << 16);
      const std::int64_t list_heads = lists.size() == 2 ? number(lists.back(), "Hl", 1, most) : shape.heads;
      if (list_heads != 1 && list_heads != shape.heads) refuse(text, "where Hl is neither 1 nor H");
      shape.shared_lists = list_heads < shape.heads;
    }
    if (!shape.sparse() && shape.landmarks > 0) refuse(text, "where landmarks need a window, not full or causal");
    return shape;
  }
};

Shape numbered(int number, const char* what, const std::string& text) {
  Shape shape = Parser{text}.parse();
  shape.number = number;
  shape.what = what;
  return shape;
}

}  // namespace

const std::vector<Shape>& numbered_shapes() {
  static const std::vector<Shape> shapes = {
      numbered(1, "dense self-attention of a task model", "4,32,2560,64,full"),
      numbered(2, "its cross-attention: few queries, many keys", "1,32,51x2560,64,full"),
      numbered(3, "training, short sequences", "4,32,2048,64,256,32"),
      numbered(4, "training, longer sequences", "1,32,8192,64,512,64"),
      numbered(5, "window only, grouped heads", "2,64/8,32768,64,1023,0"),
      numbered(6, "long text", "1,16,131072,128,1024,64"),
      numbered(7, "a million tokens", "1,8,1048576,128,1024,64"),
      numbered(8, "decoding one token against a cache", "64,32,1x32768,64,1024,64"),
      numbered(9, "16k tokens, wide heads", "1,16,16384,128,512,64"),
      numbered(10, "64k tokens, a window per token", "1,8,65536,128,32..512,64"),
      numbered(11, "sparse, for processors", "1,8,8192,64,256,32"),
      numbered(12, "dense, for processors", "1,8,4096,64,causal"),
  };
  return shapes;
}

Shape parse_shape(const std::string& text) {
  if (const auto number = whole_number(text)) {
    for (const Shape& shape : numbered_shapes())
      if (shape.number == *number) return shape;
    refuse(text, "which is no shape's number");
  }
  return Parser{text}.parse();
}

Shape settled(Shape shape, const std::string& windows, std::int64_t chunk) {
  if (windows == "constant")
    shape.windows = Windows::constant;
  else if (windows == "uniform")
    shape.windows = Windows::uniform;
  else if (windows == "bimodal")
    shape.windows = Windows::bimodal;
  else if (!windows.empty())
    throw InvalidArgument("--windows: got \"" + windows + "\", need constant, uniform or bimodal");
  if (!shape.sparse()) shape.windows = Windows::constant;
  shape.chunk = shape.landmarks > 0 && shape.queries == shape.keys ? chunk : 0;
  return shape;
}

std::vector<Shape> with_pages(const std::vector<Shape>& shapes, const std::vector<std::int64_t>& page_sizes) {
  std::vector<Shape> all;
  for (const Shape& shape : shapes) {
    all.push_back(shape);
    for (const std::int64_t size : page_sizes) {
      all.push_back(shape);
      all.back().page_size = size;
    }
  }
  return all;
}

std::string to_string(const Shape& shape) {
  std::string text = std::to_string(shape.batch) + "," + std::to_string(shape.heads);
  if (shape.kv_heads != shape.heads) text += "/" + std::to_string(shape.kv_heads);
  text += "," + std::to_string(shape.queries);
  if (shape.keys != shape.queries) text += "x" + std::to_string(shape.keys);
  text += "," + std::to_string(shape.width) + ",";
  if (!shape.sparse()) return text + std::string(name_of(shape.mask));
  const std::string lists = std::to_string(shape.landmarks) + (shape.shared_lists ? "/1" : "");
  if (shape.window < 0) return text + "none," + lists;
  if (shape.window_low != shape.window / low_share) text += std::to_string(shape.window_low) + "..";
  return text + std::to_string(shape.window) + "," + lists;
}

std::string full_name(const Shape& shape) {
  std::string text = to_string(shape);
  const std::string pages = shape.page_size > 0 ? " pages of " + std::to_string(shape.page_size) : "";
  if (!shape.sparse()) return text + pages;
  text += shape.window < 0                     ? ""
          : shape.windows == Windows::constant ? " constant"
          : shape.windows == Windows::uniform  ? " uniform"
                                               : " bimodal";
  if (shape.landmarks > 0) text += shape.chunk > 0 ? " chunk " + std::to_string(shape.chunk) : " shared";
  return text + pages;
}

}  // namespace dsalt::benchmark
