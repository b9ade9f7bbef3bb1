#include "decode_forward.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "../launch.cuh"
#include "decode_combine.cuh"
#include "decode_forward.cuh"
#include "dense_tensors.cuh"

namespace dsalt::cuda::hopper {
namespace {

constexpr const char* operation = "attention_forward";
constexpr std::int64_t most_queries = 16, most_rows = 128;  // of a sequence and kv head
constexpr std::int64_t most_queries_of_pack = 4;            // of a sequence on average: one may have them all
constexpr std::int64_t most_entries = 2048;                 // landmarks that the rows of a tile read
constexpr std::int64_t most_parts = 128;                    // of the keys of a tile
constexpr std::int64_t most_parts_of_cluster = 4;
constexpr std::int64_t most_keys = std::int64_t{1} << 30;  // of a paged sequence: positions are 32-bit numbers

/// The sizes of a call that decide how it is cut.
struct Sizes {
  bool packed;
  std::int64_t sequences, queries, keys, heads, kv_heads, group;  // packed: queries and keys of the whole pack

  explicit Sizes(const AttentionInputs& in) {
    const internal::AttentionSizes n = internal::attention_sizes(in);
    packed = n.packed;
    sequences = n.batch;
    queries = n.nq;
    keys = std::min(n.nk, most_keys + 1);
    heads = n.hq;
    kv_heads = n.hkv;
    group = heads / kv_heads;
  }
  std::int64_t queries_of_sequence() const { return packed ? ceil_div(queries, sequences) : queries; }
  int tile_rows() const { return queries_of_sequence() * group <= 8 ? 8 : 16; }
  /// Tiles of rows: packed at most, else of one sequence.
  std::int64_t tiles() const {
    return packed ? queries * group / tile_rows() + sequences : ceil_div(queries * group, tile_rows());
  }
  /// Landmarks of the lists that the rows of one tile can read.
  std::int64_t entries(const AttentionProblem& problem, const AttentionInputs& in) const {
    if (in.landmarks.size() == 0) return 0;
    const std::int64_t span = std::min((tile_rows() - 1) / group + 2, queries);  // queries of a tile
    std::int64_t lists = 1;
    if (problem.landmark_chunk) {
      const std::int64_t chunk = std::min(*problem.landmark_chunk, std::int64_t{1} << 40);
      lists = std::min(in.landmarks.shape[2], (span + chunk - 2) / chunk + 1);
    }
    return (in.landmarks.shape[1] == 1 ? 1 : group) * lists * in.landmarks.shape[3];
  }
};

/// Into how many parts the keys of a tile of rows are shared out, where there are `tiles` of these.
std::int64_t parts_of_tile(const Context& context, const AttentionProblem& problem, const Sizes& sizes,
                           std::int64_t tiles, std::int64_t entries) {
  const auto fitting = [&](std::int64_t blocks_per_multiprocessor) {
    return blocks_per_multiprocessor * context.multiprocessors / tiles;
  };
  // Windows may be much shorter than the cache: parts enough for two blocks on each multiprocessor, each of 64 keys.
  std::int64_t parts = std::min(fitting(2), ceil_div(sizes.keys + entries, 64));
  // Of the whole cache more parts, of 1024 keys: some multiprocessors are faster than others.
  if (problem.mask != Mask::sparse) parts = std::max(parts, std::min(fitting(8), sizes.keys / 1024));
  return std::clamp(parts, std::int64_t{1}, most_parts);
}

template <class T, int kHead, int kHalves, int kWarps, int kStages, bool kPaged>
void run(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
         const AttentionOutputs& out) {
  using F = Decode<T, kHead, kHalves, kWarps, kStages, kPaged>;
  const Sizes sizes(in);
  DecodeParameters<T> p{};
  p.call = attention_call<T>(problem, in);
  p.landmarks = device_view<const std::int32_t, 4>(in.landmarks);
  if (kPaged)
    p.pages = {device_view<const std::int32_t, 2>(in.page_table),
               static_cast<unsigned>(std::min(in.k.shape[0], std::int64_t{1} << 31)),
               Divider(static_cast<int>(in.k.shape[2])), in.k.shape[2] % decode_step == 0};
  p.out = rows_of<T>(out.out, sizes.packed);
  p.lse = rows_of<float>(out.lse, sizes.packed);
  p.group = static_cast<int>(sizes.group);
  p.tile_rows = F::rows;
  p.tiles = static_cast<int>(sizes.tiles());
  p.entries = static_cast<int>(sizes.entries(problem, in));
  p.scale_log2 =
      static_cast<float>(problem.scale.value_or(1 / std::sqrt(static_cast<double>(kHead))) * std::numbers::log2e);
  const std::int64_t units = p.tiles * (sizes.packed ? 1 : sizes.sequences) * sizes.kv_heads;
  // Of a pack there are about as many tiles as sequences, whatever its room.
  const std::int64_t busy =
      sizes.packed ? std::max(sizes.sequences, sizes.queries * sizes.group / F::rows) * sizes.kv_heads : units;
  const std::size_t shared_bytes = F::shared_bytes(p.entries);
  p.parts = static_cast<int>(parts_of_tile(context, problem, sizes, busy, p.entries));
  const std::int64_t parts = p.parts;
  // A cluster waits until there is room for it within one group of multiprocessors: where all blocks have room side by
  // side, that takes longer than a second kernel.
  const std::int64_t resident = context.multiprocessors * F::blocks_per_multiprocessor;
  const bool one_cluster = parts == 1 || (parts <= most_parts_of_cluster && busy * parts > resident);
  const Scratch<float> values(context, operation, one_cluster ? 0 : units * parts * F::rows * kHead);
  const Scratch<float2> statistics(context, operation, one_cluster ? 0 : units * parts * F::rows);
  p.values = values.data();
  p.statistics = statistics.data();
  launch_clusters(context, operation, decode_kernel<F>, units * parts, one_cluster ? p.parts : 1, F::threads,
                  shared_bytes, p);
  if (!one_cluster)
    launch_clusters(context, operation, decode_combine_kernel<F>, units * F::rows, 1, combine_threads, 0, p);
}

/// body(constant: steps in the ring of a warp). Long rings for whole caches; for windows and landmarks, where a warp
/// waits for more than memory, more warps side by side.
template <int kHead, class Body>
void for_stages(const AttentionProblem& problem, Body&& body) {
  constexpr int longest = kHead == 64 ? 4 : 3;
  if (problem.mask == Mask::sparse)
    body(std::integral_constant<int, 3>());
  else
    body(std::integral_constant<int, longest>());
}

template <class T, int kHead>
void choose(const Context& context, const AttentionProblem& problem, const AttentionInputs& in,
            const AttentionOutputs& out) {
  const auto run_form = [&](auto stages, auto is_paged) {
    constexpr int kStages = decltype(stages)::value;
    constexpr bool kPaged = decltype(is_paged)::value;
    Sizes(in).tile_rows() == 8 ? run<T, kHead, 1, 4, kStages, kPaged>(context, problem, in, out)
                               : run<T, kHead, 2, 4, kStages, kPaged>(context, problem, in, out);
  };
  for_stages<kHead>(problem, [&](auto stages) {
    in.page_table.present() ? run_form(stages, std::true_type()) : run_form(stages, std::false_type());
  });
}

}  // namespace

bool takes_decode_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& in) {
  if (context.deterministic || !takes_attention(context, problem, in)) return false;
  if (problem.soft_edge && problem.soft_edge->tau < 1e-30) return false;  // 1 / tau is taken in float
  const Sizes sizes(in);
  // Pools of other layouts are copied by the caller, who knows which of their pages are needed.
  if (in.page_table.present() && !(rows_are_packed(in.k, 8) && rows_are_packed(in.v, 8) && sizes.keys <= most_keys))
    return false;
  if (sizes.packed ? sizes.queries > most_queries_of_pack * sizes.sequences : sizes.queries > most_queries)
    return false;
  if (sizes.queries_of_sequence() * sizes.group > most_rows) return false;
  if (sizes.queries * sizes.group > std::int64_t{1} << 30) return false;  // rows of a sequence are 32-bit numbers
  return sizes.entries(problem, in) <= most_entries;
}

void decode_forward(const Context& context, const AttentionProblem& problem, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs) {
  AttentionInputs in = inputs;
  AttentionOutputs out = outputs;
  const DenseTensors tensors(context, operation, {&in.q}, {&out.out});
  std::optional<DenseTensors> cache;
  if (!in.page_table.present())
    cache.emplace(context, operation, std::initializer_list<TensorView*>{&in.k, &in.v},
                  std::initializer_list<TensorView*>{});
  for_kernel(in.q, [&]<class T, int kHead>(Tag<T>, std::integral_constant<int, kHead>) {
    choose<T, kHead>(context, problem, in, out);
  });
  tensors.copy_back();
}

}  // namespace dsalt::cuda::hopper
