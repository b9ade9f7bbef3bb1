// P = sum |A(i)|,  |A(i)| = |W(i)| + |{ l in list, l <= p(i) }| - |{ l in list and in W(i) }|
#include "bench/mask_view.hpp"
#include "bench/pairs.hpp"

namespace dsalt::benchmark {
namespace {

/// Keys of one sequence and kv head that some row reads: ranges as differences, landmarks one by one.
class KeysRead {
 public:
  explicit KeysRead(std::int64_t keys)
      : steps_(static_cast<std::size_t>(keys) + 1), listed_(static_cast<std::size_t>(keys)) {}

  void add(internal::KeyRange range) {
    ++steps_[static_cast<std::size_t>(range.begin)];
    --steps_[static_cast<std::size_t>(range.end)];
  }
  void add(std::int64_t landmark) { listed_[static_cast<std::size_t>(landmark)] = 1; }

  std::int64_t count() const {
    std::int64_t total = 0, depth = 0;
    for (std::size_t j = 0; j < listed_.size(); ++j) {
      depth += steps_[j];
      total += depth > 0 || listed_[j] ? 1 : 0;
    }
    return total;
  }

 private:
  std::vector<std::int64_t> steps_;
  std::vector<char> listed_;
};

std::int64_t count_head(const MaskView& view, KeysRead& read) {
  std::int64_t pairs = 0, current = -1;
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < view.rows(); ++i) {
    const internal::KeyRange range = view.range(i);
    pairs += range.end - range.begin;
    read.add(range);
    if (!view.has_lists()) continue;
    if (view.list_of(i) != current) {
      current = view.list_of(i);
      view.read_list(current, list);
    }
    const std::int64_t reachable = count_below(list, view.position(i) + 1);
    const std::int64_t inside = count_below(list, range.end) - count_below(list, range.begin);
    pairs += reachable - inside;
    const bool last_of_list = i + 1 == view.rows() || view.list_of(i + 1) != current;
    for (std::int64_t n = 0; last_of_list && n < reachable; ++n) read.add(list[static_cast<std::size_t>(n)]);
  }
  return pairs;
}

}  // namespace

AdmittedPairs count_admitted(const AttentionProblem& problem, const AttentionInputs& inputs) {
  AdmittedPairs result;
  const internal::AttentionSizes sizes = internal::attention_sizes(inputs);
  const std::int64_t group = sizes.hq / sizes.hkv;
  for (std::int64_t b = 0; b < sizes.batch; ++b)
    for (std::int64_t g = 0; g < sizes.hkv; ++g) {
      KeysRead read(sizes.nk);
      for (std::int64_t h = g * group; h < (g + 1) * group; ++h)
        result.pairs += count_head(MaskView(problem, inputs, b, h), read);
      result.keys_read += read.count();
    }
  return result;
}

}  // namespace dsalt::benchmark
