// One head's attention as a standalone picture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsalt::tools {

struct MapKey {
  std::int64_t j;
  double weight;  // exp(s_ij - lse_i)
  bool landmark;  // admitted by a list, not by the window
};

struct AttentionMap {
  std::string text;  // one byte per token
  std::string policy, backend;
  std::int64_t head = 0;
  std::int64_t row = 0;                   // the query whose keys are marked in the text
  std::int64_t chunk = 0;                 // rows per landmark list; 0: one list for all
  std::vector<std::vector<MapKey>> rows;  // A(i), one entry per token
};

/// SVG 1.1, self-contained. Above 128 tokens a cell stands for a square block of pairs and shows its largest weight.
std::string draw(const AttentionMap& map);

}  // namespace dsalt::tools
