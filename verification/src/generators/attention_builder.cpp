// Inputs of attention cases; contract in attention_builder.hpp.
#include "generators/attention_builder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace dsalt::verification {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::int64_t largest(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> starts = {0};
  for (const std::int64_t length : lengths) starts.push_back(starts.back() + length);
  return starts;
}

/// Fills rows [used, rows) of the outermost dimension with NaN.
void poison_tail(CaseBuilder& c, const std::string& name, std::int64_t used) {
  const TensorView& view = c.input(name).view();
  if (view.shape[0] == 0) return;
  const std::int64_t row = view.size() / view.shape[0];
  for (std::int64_t index = used * row; index < view.size(); ++index) c.overwrite(name, index, not_a_number);
}

/// Value of a window by its kind; `index` is the row-major position in the window tensor.
double window_value(WindowKind kind, const RandomValues& random, std::int64_t index, std::int64_t longest) {
  const auto n = static_cast<double>(longest);
  switch (kind) {
    case WindowKind::constant: return 4;
    case WindowKind::uniform: return random.uniform(index, 0, n);
    case WindowKind::bimodal: return random.uniform(index) < 0.7 ? 1 : std::floor(n / 2);
    case WindowKind::integers: return static_cast<double>(random.integer(index, -1, longest));
    case WindowKind::fractional: {
      const auto whole = static_cast<double>(random.integer(index, 0, std::max<std::int64_t>(longest / 2, 1)));
      const double beside[] = {0, 0x1p-12, -0x1p-12, 0.5};
      return whole + beside[index % 4];
    }
    case WindowKind::negative: return index % 4 == 3 ? 0 : -random.uniform(index, 0x1p-10, 3);
    case WindowKind::poisoned: return index % 3 == 1 ? not_a_number : random.uniform(index, 0, n);
    case WindowKind::past_int32: {
      const double around[] = {0x1p31 - 129, 0x1p31, 0x1p31 + 256, 0x1p32 + 512, 0x1p32, 0x1p62};
      return around[index % 6];
    }
    case WindowKind::unbounded: return index % 3 == 0 ? infinity : index % 3 == 1 ? 1e30 : 0;
  }
  return 0;
}

}  // namespace

std::int64_t AttentionSpec::used_q_rows() const { return packed() ? sum(q_lengths) : nq; }
std::int64_t AttentionSpec::used_k_rows() const { return packed() ? sum(k_lengths) : nk; }
std::int64_t AttentionSpec::q_rows() const { return used_q_rows() + (packed() ? tail : 0); }
std::int64_t AttentionSpec::k_rows() const { return used_k_rows() + (packed() ? tail : 0); }
std::int64_t AttentionSpec::longest_q() const { return packed() ? largest(q_lengths) : nq; }
std::int64_t AttentionSpec::longest_k() const { return packed() ? largest(k_lengths) : nk; }

Shape AttentionSpec::q_shape(std::int64_t heads, std::int64_t features) const {
  return packed() ? Shape{q_rows(), heads, features} : Shape{b, heads, nq, features};
}
Shape AttentionSpec::k_shape(std::int64_t heads, std::int64_t features) const {
  return packed() ? Shape{k_rows(), heads, features} : Shape{b, heads, nk, features};
}
Shape AttentionSpec::row_shape(std::int64_t heads) const {
  return packed() ? Shape{q_rows(), heads} : Shape{b, heads, nq};
}

void add_qkv(CaseBuilder& c, const AttentionSpec& spec, double scale) {
  c.set("mask", spec.mask);
  c.normal("q", spec.q_shape(spec.hq, spec.d), scale);
  c.normal("k", spec.k_shape(spec.hkv, spec.d), scale);
  c.normal("v", spec.k_shape(spec.hkv, spec.dv));
  if (!spec.packed()) return;
  c.list_i32("cu_seqlens_q", cumulative(spec.q_lengths));
  c.list_i32("cu_seqlens_k", cumulative(spec.k_lengths));
  poison_tail(c, "q", spec.used_q_rows());
  poison_tail(c, "k", spec.used_k_rows());
  poison_tail(c, "v", spec.used_k_rows());
}

void add_window(CaseBuilder& c, const AttentionSpec& spec, WindowKind kind, std::int64_t heads) {
  const RandomValues random = c.random("window");
  const std::int64_t longest = std::max<std::int64_t>(spec.longest_k(), 1);
  const Shape shape = spec.row_shape(heads);
  if (kind == WindowKind::integers) {
    c.fill_i32("window", shape, [&](std::int64_t index) {
      return static_cast<std::int64_t>(window_value(kind, random, index, longest));
    });
    return;
  }
  c.fill("window", shape, c.statistics(),
         [&](std::int64_t index) { return window_value(kind, random, index, longest); });
  if (spec.packed()) poison_tail(c, "window", spec.used_q_rows());
}

void add_landmarks(CaseBuilder& c, const AttentionSpec& spec, const LandmarkSpec& landmarks) {
  const std::int64_t lists = landmarks.lists(spec), longest = std::max<std::int64_t>(spec.longest_k(), 1);
  const Shape shape = {spec.batch(), landmarks.heads, lists, landmarks.k};
  const RandomValues random = c.random("landmarks");
  const auto messy = [&](std::int64_t index) -> std::int64_t {
    switch (index % 7) {
      case 0: return -1;
      case 1: return longest;  // just beyond the longest sequence
      case 2: return std::numeric_limits<std::int32_t>::max();
      case 3: return std::numeric_limits<std::int32_t>::min();
      case 4: return longest - 1;  // the future of almost every query
      default: return random.integer(index, 0, std::min<std::int64_t>(longest - 1, 3));  // repeats
    }
  };
  c.fill_i32("landmarks", shape, [&](std::int64_t index) {
    return landmarks.messy && random.uniform(index) < 0.7 ? messy(index) : random.integer(index, 0, longest - 1);
  });
  if (landmarks.chunk > 0) c.set("landmark_chunk", landmarks.chunk);
  if (landmarks.offset > 0) c.set("landmark_offset", landmarks.offset);
  if (!landmarks.weights) return;
  c.normal_statistics("landmark_log_weight", shape, landmarks.weight_scale);
  // Slots unused by every sequence, and lists that nobody reads, hold NaN: they are never read.
  const TensorView& indices = c.input("landmarks").view();
  for (std::int64_t index = 0; index < indices.size(); ++index) {
    const std::int32_t l = *indices.at<std::int32_t>(index);
    const bool is_surplus = index / landmarks.k % lists >= lists - landmarks.surplus;
    if (is_surplus || l < 0 || l >= spec.longest_k()) c.overwrite("landmark_log_weight", index, not_a_number);
  }
}

void add_soft_edge(CaseBuilder& c, double edge, double tau) {
  c.set("soft_edge", edge);
  c.set("soft_tau", tau);
}

void add_dropout(CaseBuilder& c, double p, std::uint64_t seed, std::int64_t offset) {
  c.set("dropout_p", p);
  c.set("dropout_seed", static_cast<std::int64_t>(seed));
  c.set("dropout_offset", offset);
}

void add_gradients(CaseBuilder& c, const AttentionSpec& spec, bool dlse) {
  c.normal("dout", spec.q_shape(spec.hq, spec.dv));
  if (spec.packed()) poison_tail(c, "dout", spec.used_q_rows());
  if (!dlse) return;
  c.normal_statistics("dlse", spec.row_shape(spec.hq));
  if (spec.packed()) poison_tail(c, "dlse", spec.used_q_rows());
}

void add_k_lengths(CaseBuilder& c, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths) {
  c.list_i32("k_lengths", lengths);
  for (std::int64_t b = 0; b < spec.b; ++b)
    for (std::int64_t h = 0; h < spec.hkv; ++h)
      for (std::int64_t j = lengths[static_cast<std::size_t>(b)]; j < spec.nk; ++j) {
        const std::int64_t row = (b * spec.hkv + h) * spec.nk + j;
        for (std::int64_t t = 0; t < spec.d; ++t) c.overwrite("k", row * spec.d + t, not_a_number);
        for (std::int64_t t = 0; t < spec.dv; ++t) c.overwrite("v", row * spec.dv + t, not_a_number);
      }
}

void add_pages(CaseBuilder& c, const AttentionSpec& spec, const std::vector<std::int64_t>& lengths,
               const PageSpec& pages, double scale) {
  const std::int64_t entries = (spec.nk + pages.page - 1) / pages.page;
  // rows[b]: the pages of sequence b, numbered in the order of their first use; then all of them are shuffled.
  std::vector<std::vector<std::int64_t>> rows;
  std::int64_t count = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t used = (length + pages.page - 1) / pages.page;
    std::vector<std::int64_t> row;
    if (pages.shared && !rows.empty())
      row.assign(rows.back().begin(),
                 rows.back().begin() + std::min((used + 1) / 2, static_cast<std::int64_t>(rows.back().size())));
    while (static_cast<std::int64_t>(row.size()) < used) row.push_back(count++);
    rows.push_back(row);
  }
  count += 2;  // of no sequence
  std::vector<std::int64_t> place(static_cast<std::size_t>(count));
  std::iota(place.begin(), place.end(), 0);
  const RandomValues random = c.random("page_table");
  for (std::int64_t n = count - 1; n > 0; --n)
    std::swap(place[static_cast<std::size_t>(n)], place[static_cast<std::size_t>(random.integer(n, 0, n))]);

  const std::int64_t outside[] = {-1, count, std::numeric_limits<std::int32_t>::min(),
                                  std::numeric_limits<std::int32_t>::max()};
  c.fill_i32("page_table", {spec.b, entries}, [&](std::int64_t index) {
    const std::vector<std::int64_t>& row = rows[static_cast<std::size_t>(index / entries)];
    const auto entry = static_cast<std::size_t>(index % entries);
    if (entry < row.size()) return place[static_cast<std::size_t>(row[entry])];
    return pages.clean ? index % count : outside[index % 4];
  });
  c.list_i32("k_lengths", lengths);
  c.normal("k", {count, spec.hkv, pages.page, spec.d}, scale);
  c.normal("v", {count, spec.hkv, pages.page, spec.dv});
  if (pages.clean) return;

  std::vector<bool> read(static_cast<std::size_t>(count * pages.page), false);
  for (std::size_t b = 0; b < rows.size(); ++b)
    for (std::int64_t j = 0; j < lengths[b]; ++j) {
      const auto page = static_cast<std::size_t>(rows[b][static_cast<std::size_t>(j / pages.page)]);
      read[static_cast<std::size_t>(place[page] * pages.page + j % pages.page)] = true;
    }
  for (const char* name : {"k", "v"}) {
    const TensorView pool = c.input(name);
    for (std::int64_t page = 0; page < count; ++page)
      for (std::int64_t row = 0; row < pages.page; ++row)
        for (std::int64_t h = 0; h < spec.hkv && !read[static_cast<std::size_t>(page * pages.page + row)]; ++h)
          for (std::int64_t t = 0; t < pool.shape[3]; ++t)
            c.overwrite(name, ((page * spec.hkv + h) * pages.page + row) * pool.shape[3] + t, not_a_number);
  }
}

}  // namespace dsalt::verification
