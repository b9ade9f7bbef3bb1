// dsalt attention-map: w_ij = exp(s_ij - lse_i) of one head for a text, drawn.
//
// The weights are what the backend computes: with the columns of the identity as values, out_ij = w_ij. The admitted
// set comes from the window sizes and landmark lists, and the weights are checked against it.
#include <algorithm>
#include <cmath>

#include "attention_svg.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/verification/text.hpp"
#include "output_file.hpp"

namespace dsalt::tools {
namespace {

constexpr std::int64_t heads = 4, head_size = 32;

float& float_at(const Tensor& tensor, std::int64_t offset) { return *tensor.view().at<float>(offset); }

/// Keeps one head of a tensor [1,H,...].
Tensor one_head(const Tensor& tensor, std::int64_t head) {
  return Tensor(tensor.storage(), tensor.view().narrow(1, head, 1));
}

/// Weights [N][N] of one head, 64 identity columns per call.
std::vector<float> weights_of(Backend& backend, verification::Case c, std::int64_t head, std::int64_t n) {
  for (const char* name : {"q", "k", "window", "landmarks", "landmark_log_weight"})
    c.inputs[name] = one_head(c.inputs.at(name), head);
  std::vector<float> weights(static_cast<std::size_t>(n * n));
  constexpr std::int64_t block = 64;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const Tensor identity = Tensor::zeros({1, 1, n, block}, DType::f32);
    const std::int64_t width = std::min(block, n - begin);
    for (std::int64_t j = 0; j < width; ++j) float_at(identity, (begin + j) * block + j) = 1;
    c.inputs["v"] = identity;
    const Tensor out = verification::evaluate(backend, c).at("out");
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < width; ++j)
        weights[static_cast<std::size_t>(i * n + begin + j)] = float_at(out, i * block + j);
  }
  return weights;
}

/// A(i) of every row: the window first, then landmarks in list order.
std::vector<std::vector<MapKey>> admitted(const verification::TextActivations& t, std::int64_t head,
                                          std::int64_t chunk) {
  const TensorView window = t.window.view().select(0, 0).select(0, head);
  const TensorView lists = t.landmarks.view().select(0, 0).select(0, head);
  const std::int64_t n = window.shape[0];
  std::vector<std::vector<MapKey>> rows(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    auto& keys = rows[static_cast<std::size_t>(i)];
    const auto reach = static_cast<std::int64_t>(std::floor(*window.at<float>(i * window.strides[0])));
    const std::int64_t first = std::max<std::int64_t>(0, i - reach);
    for (std::int64_t j = first; j <= i; ++j) keys.push_back({j, 0, false});
    const std::int64_t list = chunk > 0 ? i / chunk : 0;
    for (std::int64_t slot = 0; slot < lists.shape[1]; ++slot) {
      const std::int64_t l = *lists.at<std::int32_t>(list * lists.strides[0] + slot * lists.strides[1]);
      if (l >= 0 && l < first) keys.push_back({l, 0, true});
    }
  }
  return rows;
}

/// Moves the weights to the admitted keys; false when they do not sum to 1 there, or are not 0 elsewhere.
bool attach(std::vector<std::vector<MapKey>>& rows, std::vector<float>& weights) {
  const std::size_t n = rows.size();
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (MapKey& key : rows[i]) {
      float& weight = weights[i * n + static_cast<std::size_t>(key.j)];
      key.weight = static_cast<double>(weight);
      sum += key.weight;
      weight = 0;
    }
    if (!(std::fabs(sum - 1) < 1e-4)) return false;
  }
  return std::all_of(weights.begin(), weights.end(), [](float weight) { return weight == 0; });
}

}  // namespace

int attention_map(const AttentionMapArguments& a) {
  if (a.text.empty() && a.string.empty())
    throw InvalidArgument("attention-map needs a text: --text FILE or --string S");
  AttentionMap map;
  map.text = a.text.empty() ? a.string.substr(0, static_cast<std::size_t>(a.length))
                            : verification::read_text(a.text, a.length);
  if (map.text.empty()) throw InvalidArgument("--text: " + a.text + " is empty, need at least 1 byte");
  const auto n = static_cast<std::int64_t>(map.text.size());
  if (a.row >= n)
    throw InvalidArgument("--row: got " + std::to_string(a.row) + ", need less than " + std::to_string(n) +
                          ", the number of tokens");
  if (a.n_max < a.n_min) throw InvalidArgument("--n-max: got a number below --n-min, need at least as much");
  const OutputFile file(a.output);
  BackendOptions options;
  options.threads = a.threads;
  const auto backend = open_backend(a.backend, options);

  const SelectionPolicy policy = a.policy == "global" ? SelectionPolicy::global : SelectionPolicy::causal;
  const verification::TextShape shape{n, heads, heads,   head_size,   a.n_min,    a.n_max,
                                      2, 1,     a.chunk, a.landmarks, a.landmarks};
  ProgressLine progress;
  progress.update("attention-map", 0, 1);
  const auto t = verification::run_text(*backend, shape, DType::f32, map.text, policy);
  map.policy = a.policy;
  map.backend = backend->name();
  map.head = a.head;
  map.row = a.row < 0 ? n - 1 : a.row;
  map.chunk = policy == SelectionPolicy::causal ? a.chunk : 0;
  map.rows = admitted(t, a.head, map.chunk);
  std::vector<float> weights = weights_of(*backend, verification::text_attention_case(shape, policy, t), a.head, n);
  progress.finish();
  if (!attach(map.rows, weights)) {
    note("the weights of backend " + map.backend + " contradict its windows and landmark lists; no picture was drawn");
    return check_failed;
  }
  file.write(draw(map));
  print("drew head " + std::to_string(a.head) + " of " + std::to_string(n) + " tokens, policy " + a.policy + ", on " +
        map.backend + ": " + a.output + "\n");
  return success;
}

}  // namespace dsalt::tools
