// The picture: a map with queries as rows and keys as columns, a legend, and the text as one query sees it.
// Colour is a weight on a logarithmic scale from 0.1 % to 100 %, blue for window keys and orange for landmarks.
#include "attention_svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "markup.hpp"

namespace dsalt::tools {
namespace {

constexpr double map_left = 96, map_top = 150, map_side = 720, side_width = 280, margin = 40;
constexpr std::int64_t most_cells = 128;
constexpr std::int64_t text_columns = 88;
constexpr const char* ink = "#1f2430";
constexpr const char* faint_ink = "#6b7280";
constexpr const char* mark = "#c2185b";  // the query that is shown in the text

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string trimmed = text;
  while (trimmed.back() == '0') trimmed.pop_back();
  if (trimmed.back() == '.') trimmed.pop_back();
  return trimmed;
}

std::string percent(double share) {
  char text[32];
  const double value = 100 * share;
  std::snprintf(text, sizeof text, value >= 9.95 ? "%.0f %%" : value >= 0.095 ? "%.1f %%" : "%.1g %%", value);
  return text;
}

/// One visible character for a byte, escaped.
std::string glyph(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == ' ') return "\u00b7";
  if (c == '\n') return "\u21b5";
  if (c == '\t') return "\u2192";
  return byte > 0x20 && byte < 0x7f ? escaped(std::string(1, c)) : "\u25ab";
}

/// 57 'e', or 3 0x0a for a byte that does not print.
std::string token_name(const AttentionMap& map, std::int64_t i) {
  const auto byte = static_cast<unsigned char>(map.text[static_cast<std::size_t>(i)]);
  char text[32];
  if (byte >= 0x20 && byte < 0x7f)
    std::snprintf(text, sizeof text, "%lld '%c'", static_cast<long long>(i), byte);
  else
    std::snprintf(text, sizeof text, "%lld 0x%02x", static_cast<long long>(i), static_cast<unsigned>(byte));
  return escaped(text);
}

std::string per_query(double count) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", count);
  return text;
}

using Colour = std::array<double, 3>;
constexpr std::array<Colour, 3> blues = {{{217, 230, 245}, {76, 139, 200}, {8, 48, 107}}};
constexpr std::array<Colour, 3> oranges = {{{253, 226, 196}, {240, 134, 36}, {140, 45, 4}}};

/// 0 at 0.1 % and below, 1 at 100 %.
double intensity(double weight) { return weight <= 1e-3 ? 0 : std::min(1.0, 1 + std::log10(weight) / 3); }

std::string colour(const std::array<Colour, 3>& ramp, double t) {
  const std::size_t low = t < 0.5 ? 0 : 1;
  const double part = t < 0.5 ? 2 * t : 2 * t - 1;
  int channel[3];
  for (std::size_t n = 0; n < 3; ++n)
    channel[n] = static_cast<int>(std::lround(ramp[low][n] + part * (ramp[low + 1][n] - ramp[low][n])));
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", channel[0], channel[1], channel[2]);
  return text;
}

std::string colour_of(double weight, bool landmark) { return colour(landmark ? oranges : blues, intensity(weight)); }

std::string text_at(double x, double y, const std::string& style, const std::string& content) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + style + ">" + content + "</text>\n";
}

std::string rectangle(double x, double y, double width, double height, const std::string& style) {
  return "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) + "\" height=\"" +
         number(height) + "\" " + style + "/>\n";
}

struct Grid {
  std::int64_t n, block, cells;
  double cell;

  explicit Grid(std::int64_t tokens)
      : n(tokens),
        block((tokens + most_cells - 1) / most_cells),
        cells((tokens + block - 1) / block),
        cell(std::min(24.0, map_side / static_cast<double>(cells))) {}

  double side() const { return cell * static_cast<double>(cells); }
  double x(std::int64_t j) const { return map_left + cell * static_cast<double>(j / block); }
  double y(std::int64_t i) const { return map_top + cell * static_cast<double>(i / block); }
  bool labelled() const { return block == 1 && cell >= 8; }
  std::string range(std::int64_t index) const {
    const std::int64_t first = index * block, last = std::min(n, first + block) - 1;
    return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
  }
};

std::string title_lines(const AttentionMap& map) {
  const std::string policy = map.chunk > 0
                                 ? "causal landmarks: a new list every " + std::to_string(map.chunk) + " tokens"
                                 : "global landmarks: one list, selected with the whole text in view";
  const std::string detail =
      std::to_string(map.text.size()) + " bytes, " + policy + ", computed by backend " + escaped(map.backend);
  return text_at(margin, 48, "class=\"h\"", "What attention head " + std::to_string(map.head) + " reads") +
         text_at(margin, 72, "class=\"f\"", detail);
}

std::string axes(const AttentionMap& map, const Grid& grid) {
  const double middle = grid.side() / 2;
  std::string svg =
      text_at(map_left + middle, map_top - 46, "class=\"a\" text-anchor=\"middle\"", "key: the token that is read") +
      text_at(0, 0,
              "class=\"a\" text-anchor=\"middle\" transform=\"translate(" + number(map_left - 52) + " " +
                  number(map_top + middle) + ") rotate(-90)\"",
              "query: the token that reads");
  if (grid.labelled()) {
    const std::string font = "class=\"m\" font-size=\"" + number(std::min(13.0, grid.cell * 1.05)) + "\" text-anchor=";
    for (std::int64_t i = 0; i < grid.n; ++i) {
      const std::string label = glyph(map.text[static_cast<std::size_t>(i)]);
      svg += text_at(grid.x(i) + grid.cell / 2, map_top - 14, font + "\"middle\"", label);
      svg += text_at(map_left - 8, grid.y(i) + grid.cell * 0.8, font + "\"end\"", label);
    }
  }
  std::int64_t step = 1;  // 1, 2, 5, 10, ... tokens between the numbers, at least 48 pixels
  for (int n = 0; static_cast<double>(step / grid.block) * grid.cell < 48; ++n) step = step * (n % 3 == 1 ? 5 : 4) / 2;
  for (std::int64_t i = 0; i < grid.n; i += step) {
    const std::string label = std::to_string(i);
    svg += text_at(grid.x(i) + grid.cell / 2, map_top - 28, "class=\"t\" text-anchor=\"middle\"", label);
    svg += text_at(map_left - 24, grid.y(i) + grid.cell / 2 + 4, "class=\"t\" text-anchor=\"end\"", label);
  }
  return svg;
}

/// Small triangles over the columns that some query reads as a landmark.
std::string landmark_marks(const AttentionMap& map, const Grid& grid) {
  std::vector<bool> read(static_cast<std::size_t>(grid.cells));
  for (const auto& keys : map.rows)
    for (const MapKey& key : keys)
      if (key.landmark) read[static_cast<std::size_t>(key.j / grid.block)] = true;
  std::string svg = "<g fill=\"" + colour(oranges, 0.5) + "\">\n";
  for (std::int64_t cell = 0; cell < grid.cells; ++cell) {
    if (!read[static_cast<std::size_t>(cell)]) continue;
    const double middle = grid.x(cell * grid.block) + grid.cell / 2, half = std::min(4.0, grid.cell / 2);
    svg += "<path d=\"M" + number(middle - half) + " " + number(map_top - 3 - 1.6 * half) + "h" + number(2 * half) +
           "l-" + number(half) + " " + number(1.6 * half) + "z\"/>\n";
  }
  return svg + "</g>\n";
}

std::string cells(const AttentionMap& map, const Grid& grid) {
  std::string svg;
  std::vector<MapKey> heaviest(static_cast<std::size_t>(grid.cells));
  for (std::int64_t row = 0; row < grid.cells; ++row) {
    std::fill(heaviest.begin(), heaviest.end(), MapKey{-1, -1, false});
    const std::int64_t end = std::min(grid.n, (row + 1) * grid.block);
    for (std::int64_t i = row * grid.block; i < end; ++i)
      for (const MapKey& key : map.rows[static_cast<std::size_t>(i)]) {
        MapKey& cell = heaviest[static_cast<std::size_t>(key.j / grid.block)];
        if (key.weight > cell.weight) cell = key;
      }
    svg += "<g transform=\"translate(" + number(map_left) + " " + number(grid.y(row * grid.block)) + ")\">\n";
    for (std::int64_t column = 0; column < grid.cells; ++column) {
      const MapKey& key = heaviest[static_cast<std::size_t>(column)];
      if (key.j < 0) continue;
      const std::string size = number(grid.cell);
      const std::string who =
          grid.block == 1
              ? "query " + token_name(map, row) + " reads key " + token_name(map, key.j) + ": " + percent(key.weight)
              : "queries " + grid.range(row) + ", keys " + grid.range(column) + ": at most " + percent(key.weight);
      svg += "<path fill=\"" + colour_of(key.weight, key.landmark) + "\" d=\"M" +
             number(grid.cell * static_cast<double>(column)) + " 0h" + size + "v" + size + "h-" + size + "z\"><title>" +
             who + (key.landmark ? ", landmark" : ", window") + "</title></path>\n";
    }
    svg += "</g>\n";
  }
  return svg;
}

std::string map_area(const AttentionMap& map, const Grid& grid) {
  const double side = grid.side(), right = map_left + side, bottom = map_top + side;
  std::string svg = rectangle(map_left, map_top, side, side, "fill=\"#ffffff\" stroke=\"#d5d9e0\"");
  svg += "<path fill=\"#f0f1f4\" d=\"M" + number(map_left) + " " + number(map_top) + "H" + number(right) + "V" +
         number(bottom) + "z\"><title>the future: never read</title></path>\n";
  svg += "<g shape-rendering=\"crispEdges\">\n" + cells(map, grid) + "</g>\n";
  if (map.chunk > 0)
    for (std::int64_t i = map.chunk; i < grid.n; i += map.chunk) {
      const double y = map_top + grid.cell * static_cast<double>(i) / static_cast<double>(grid.block);
      if (static_cast<double>(map.chunk) * grid.cell / static_cast<double>(grid.block) < 6) break;  // a grey wall
      svg += "<path stroke=\"#8a93a3\" stroke-width=\"0.8\" stroke-dasharray=\"4 3\" d=\"M" + number(map_left) + " " +
             number(y) + "H" + number(map_left + (y - map_top)) + "\"/>\n";
    }
  svg += rectangle(map_left, grid.y(map.row), grid.x(map.row) + grid.cell - map_left, grid.cell,
                   "fill=\"none\" stroke-width=\"1.2\" stroke=\"" + std::string(mark) + "\"");
  return svg;
}

std::string ramp_bar(double x, double y, const std::array<Colour, 3>& ramp, const std::string& id,
                     const std::string& label) {
  constexpr double width = 200;
  std::string svg = "<linearGradient id=\"" + id + "\">";
  for (const double t : {0.0, 0.5, 1.0})
    svg += "<stop offset=\"" + number(t) + "\" stop-color=\"" + colour(ramp, t) + "\"/>";
  svg += "</linearGradient>\n" + text_at(x, y, "class=\"a\"", label) +
         rectangle(x, y + 8, width, 12, "fill=\"url(#" + id + ")\"");
  const std::array<const char*, 4> ticks = {"0.1 %", "1 %", "10 %", "100 %"};
  for (std::size_t n = 0; n < ticks.size(); ++n) {
    const double at = x + width * static_cast<double>(n) / 3;
    const char* anchor = n == 0 ? "start" : n + 1 == ticks.size() ? "end" : "middle";
    svg += "<path stroke=\"#8a93a3\" d=\"M" + number(at) + " " + number(y + 20) + "v4\"/>\n";
    svg += text_at(at, y + 36, "class=\"t\" text-anchor=\"" + std::string(anchor) + "\"", ticks[n]);
  }
  return svg;
}

std::string legend(const AttentionMap& map, const Grid& grid) {
  const double x = map_left + grid.side() + margin;
  double y = map_top + 12;
  std::string svg = ramp_bar(x, y, blues, "window", "weight of a window key");
  svg += ramp_bar(x, y += 62, oranges, "landmark", "weight of a landmark");
  const auto line = [&](const std::string& symbol, const std::string& words) {
    y += 24;
    svg += symbol + text_at(x + 26, y, "class=\"f\"", words);
  };
  y += 42;
  line(rectangle(x, y + 14, 16, 12, "fill=\"#f0f1f4\" stroke=\"#d5d9e0\""), "the future: never read");
  line(rectangle(x, y + 14, 16, 12, "fill=\"#ffffff\" stroke=\"#d5d9e0\""), "not read");
  line("<path fill=\"" + colour(oranges, 0.5) + "\" d=\"M" + number(x + 3) + " " + number(y + 16) + "h10l-5 8z\"/>\n",
       "a landmark of some query");
  if (map.chunk > 0)
    line("<path stroke=\"#8a93a3\" stroke-dasharray=\"4 3\" d=\"M" + number(x) + " " + number(y + 20) + "h16\"/>\n",
         "a new landmark list starts");
  line(rectangle(x, y + 15, 16, 9, "fill=\"none\" stroke=\"" + std::string(mark) + "\""), "the query shown below");

  std::int64_t pairs = 0, landmarks = 0;
  double landmark_weight = 0;
  for (const auto& keys : map.rows)
    for (const MapKey& key : keys) {
      ++pairs;
      landmarks += key.landmark ? 1 : 0;
      landmark_weight += key.landmark ? key.weight : 0;
    }
  const auto n = static_cast<double>(grid.n);
  y += 42;
  const auto fact = [&](const std::string& value, const std::string& words) {
    svg += text_at(x, y, "class=\"v\"", value) + text_at(x + 74, y, "class=\"f\"", words);
    y += 22;
  };
  fact(percent(static_cast<double>(pairs) / (n * (n + 1) / 2)), "of the causal pairs read");
  fact(per_query(static_cast<double>(pairs - landmarks) / n), "window keys per query");
  fact(per_query(static_cast<double>(landmarks) / n), "landmarks per query");
  fact(percent(landmark_weight / n), "of the weight on landmarks");
  if (grid.block > 1) {
    y += 12;
    svg +=
        text_at(x, y, "class=\"f\"",
                "A cell is a block of " + std::to_string(grid.block) + " x " + std::to_string(grid.block) + " pairs");
    svg += text_at(x, y + 18, "class=\"f\"", "and shows its largest weight.");
  }
  return svg;
}

/// The text with the keys of one query coloured; lines that hold none of them are left out. Adds its height to `y`.
std::string text_panel(const AttentionMap& map, double& y) {
  constexpr double pitch = 10.5, line_height = 22;
  const auto& keys = map.rows[static_cast<std::size_t>(map.row)];
  double window_weight = 0, landmark_weight = 0;
  std::int64_t landmarks = 0;
  for (const MapKey& key : keys) {
    (key.landmark ? landmark_weight : window_weight) += key.weight;
    landmarks += key.landmark ? 1 : 0;
  }
  const auto window_keys = static_cast<std::int64_t>(keys.size()) - landmarks;
  std::string svg =
      text_at(margin, y, "class=\"h2\"", "What query " + token_name(map, map.row) + " reads") +
      text_at(margin, y + 20, "class=\"f\"",
              std::to_string(window_keys) + (window_keys == 1 ? " key" : " keys") + " in its window with " +
                  percent(window_weight) + " of the weight, " + std::to_string(landmarks) +
                  (landmarks == 1 ? " landmark" : " landmarks") + " with " + percent(landmark_weight));
  y += 50;
  const auto n = static_cast<std::int64_t>(map.text.size());
  std::int64_t left_out = 0;
  for (std::int64_t begin = 0; begin < n; begin += text_columns) {
    const std::int64_t end = std::min(n, begin + text_columns);
    const bool shown =
        (map.row >= begin && map.row < end) ||
        std::any_of(keys.begin(), keys.end(), [&](const MapKey& key) { return key.j >= begin && key.j < end; });
    if (!shown) {
      ++left_out;
      continue;
    }
    if (left_out > 0) {
      svg += text_at(margin + 48, y, "class=\"t\"",
                     std::to_string(left_out) + (left_out == 1 ? " line" : " lines") + " not read");
      left_out = 0;
      y += line_height;
    }
    svg += text_at(margin + 34, y, "class=\"t\" text-anchor=\"end\"", std::to_string(begin));
    const auto at = [&](std::int64_t j) { return margin + 48 + pitch * static_cast<double>(j - begin); };
    std::vector<bool> dark(static_cast<std::size_t>(end - begin));
    for (const MapKey& key : keys) {
      if (key.j < begin || key.j >= end) continue;
      dark[static_cast<std::size_t>(key.j - begin)] = intensity(key.weight) > 0.6;
      svg += "<rect x=\"" + number(at(key.j)) + "\" y=\"" + number(y - 14) + "\" width=\"" + number(pitch) +
             "\" height=\"19\" shape-rendering=\"crispEdges\" fill=\"" + colour_of(key.weight, key.landmark) +
             "\"><title>key " + token_name(map, key.j) + ": " + percent(key.weight) +
             (key.landmark ? ", landmark" : ", window") + "</title></rect>\n";
    }
    if (map.row >= begin && map.row < end)
      svg += rectangle(at(map.row), y - 15, pitch, 21,
                       "fill=\"none\" stroke-width=\"1.6\" stroke=\"" + std::string(mark) + "\"");
    for (std::int64_t j = begin; j < end; ++j) {
      const bool space = map.text[static_cast<std::size_t>(j)] == ' ';
      if (space) continue;
      const char* fill = dark[static_cast<std::size_t>(j - begin)] ? " style=\"fill:#ffffff\""
                         : j > map.row                             ? " style=\"fill:#9aa1ad\""
                                                                   : "";
      svg += text_at(at(j) + pitch / 2, y,
                     "class=\"m\" font-size=\"15\" text-anchor=\"middle\" pointer-events=\"none\"" + std::string(fill),
                     glyph(map.text[static_cast<std::size_t>(j)]));
    }
    y += line_height;
  }
  return svg;
}

}  // namespace

std::string draw(const AttentionMap& map) {
  const Grid grid(static_cast<std::int64_t>(map.text.size()));
  const double legend_height = 400;
  double y = map_top + std::max(grid.side(), legend_height) + 56;
  const std::string panel = text_panel(map, y);
  const double width = std::max(map_left + grid.side() + margin + side_width,
                                2 * margin + 48 + 10.5 * static_cast<double>(text_columns));
  const double height = y + 16;
  const std::string size = number(width) + " " + number(height);
  std::string svg =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " +
      size + "\" width=\"" + number(width) + "\" height=\"" + number(height) +
      "\" role=\"img\">\n<title>Attention head " + std::to_string(map.head) + ", " + escaped(map.policy) + " policy, " +
      std::to_string(map.text.size()) + " tokens</title>\n<style>" +
      "text{font-family:Inter,'Segoe UI','Helvetica Neue','DejaVu Sans',Arial,sans-serif;fill:" + ink + "}" +
      ".h{font-size:24px;font-weight:600}.h2{font-size:17px;font-weight:600}.a{font-size:13px;font-weight:600}" +
      ".v{font-size:15px;font-weight:600}.f{font-size:13px;fill:" + faint_ink + "}.t{font-size:11px;fill:" + faint_ink +
      "}.m{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace}" + "</style>\n" +
      rectangle(0, 0, width, height, "fill=\"#ffffff\"");
  svg +=
      title_lines(map) + axes(map, grid) + landmark_marks(map, grid) + map_area(map, grid) + legend(map, grid) + panel;
  return svg + "</svg>\n";
}

}  // namespace dsalt::tools
