// Admitted pairs against the definition, row by row; executed pairs against numbers worked out by hand.
#include <boost/test/unit_test.hpp>
#include <set>

#include "bench/data.hpp"
#include "bench/mask_view.hpp"
#include "bench/pairs.hpp"
#include "dsalt/registry.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::benchmark;

struct Call {
  AttentionProblem problem;
  AttentionInputs inputs;
  Tensor q, k, windows, lists;

  /// Masks of a written-out shape; queries and keys are never read.
  explicit Call(const std::string& text, const std::string& drawn = "", std::int64_t chunk = 0) {
    const Shape shape = settled(parse_shape(text), drawn, chunk);
    problem.mask = shape.mask;
    if (shape.chunk > 0) problem.landmark_chunk = shape.chunk;
    q = Tensor::empty({shape.batch, shape.heads, shape.queries, shape.width}, DType::f32);
    k = Tensor::empty({shape.batch, shape.kv_heads, shape.keys, shape.width}, DType::f32);
    if (shape.sparse()) windows = draw_windows(shape);
    if (shape.landmarks > 0) lists = draw_landmarks(shape);
    use();
  }

  void use() {
    inputs.q = q;
    inputs.k = inputs.v = k;
    inputs.window = windows;
    inputs.landmarks = lists;
  }

  void fill_lists(std::initializer_list<std::int32_t> values) {
    std::copy(values.begin(), values.end(), lists.view().at<std::int32_t>(0));
  }
};

/// By enumeration of every A(i).
AdmittedPairs enumerated(const Call& call) {
  AdmittedPairs result;
  const auto sizes = internal::attention_sizes(call.inputs);
  std::set<std::array<std::int64_t, 3>> read;
  std::vector<internal::AdmittedKey> keys;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const auto sequence = internal::attention_sequence(call.inputs, b);
    const internal::RowMask mask{call.problem, sequence};
    for (std::int64_t h = 0; h < sizes.hq; ++h)
      for (std::int64_t i = 0; i < sequence.nq; ++i) {
        mask.admitted(h, i, keys);
        result.pairs += static_cast<std::int64_t>(keys.size());
        for (const auto& key : keys) read.insert({b, h / (sizes.hq / sizes.hkv), key.j});
      }
  }
  result.keys_read = static_cast<std::int64_t>(read.size());
  return result;
}

void check_admitted(const Call& call) {
  const AdmittedPairs counted = count_admitted(call.problem, call.inputs), expected = enumerated(call);
  BOOST_TEST(counted.pairs == expected.pairs);
  BOOST_TEST(counted.keys_read == expected.keys_read);
  BOOST_TEST(count_executed_cpu(call.problem, call.inputs) >= counted.pairs);
}

std::int64_t executed(const std::string& shape, std::int64_t chunk = 0) {
  const Call call(shape, "constant", chunk);
  return count_executed_cpu(call.problem, call.inputs);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(pairs)

BOOST_AUTO_TEST_CASE(admitted_pairs_are_those_of_the_definition) {
  for (const char* shape : {"1,1,1,4,full", "2,3,17,4,full", "1,2,5x40,4,full", "2,2,33,4,causal", "1,2,7x90,4,causal",
                            "1,1,90x7,4,causal", "1,4/2,50,4,causal"})
    BOOST_TEST_CONTEXT(shape) check_admitted(Call(shape));
  for (const char* shape : {"1,1,130,4,0", "2,2,150,4,9", "1,6/2,200,4,33,5", "1,2,300,4,0,40", "1,2,100,4,500,7",
                            "2,1,1x200,4,20,9", "1,2,70x200,4,16,9", "1,1,200x70,4,16,9", "1,4/1,129,4,3..60,8"})
    for (const char* windows : {"constant", "uniform", "bimodal"})
      for (const std::int64_t chunk : {0, 1, 16, 50, 1000})
        BOOST_TEST_CONTEXT(shape << " " << windows << " chunk " << chunk) check_admitted(Call(shape, windows, chunk));
}

BOOST_AUTO_TEST_CASE(repeated_unused_and_unsorted_slots_count_once) {
  Call call("1,1,12,4,2,6", "constant");
  call.fill_lists({5, 0, 5, -1, 12, 0});
  check_admitted(call);
  call.fill_lists({11, 3, 3, 2, 2, 7});
  check_admitted(call);
  call.windows.view().at<std::int32_t>(0)[4] = -1;  // an empty window leaves the landmarks
  check_admitted(call);
}

BOOST_AUTO_TEST_CASE(decoding_reads_the_window_and_the_landmarks) {
  const Call call("3,2,1x1000,4,31,8", "constant");
  const AdmittedPairs admitted = count_admitted(call.problem, call.inputs);
  BOOST_TEST(admitted.pairs == admitted.keys_read);  // one query per kv head
  BOOST_TEST(admitted.pairs > 3 * 2 * 32);
  BOOST_TEST(admitted.pairs <= 3 * 2 * (32 + 8));
}

BOOST_AUTO_TEST_CASE(executed_pairs_by_hand) {
  BOOST_TEST(executed("1,1,64,4,full") == 64 * 64);
  BOOST_TEST(executed("2,3,64,4,full") == 6 * 64 * 64);
  BOOST_TEST(executed("1,1,20x64,4,full") == 32 * 64);  // rows come in groups of 16
  BOOST_TEST(executed("1,1,64x70,4,full") == 64 * 70);
  BOOST_TEST(executed("1,24/2,1x64,4,full") == 2 * 16 * 64);  // the heads of a group share its tiles
  BOOST_TEST(executed("1,16/2,1x64,4,full") == 2 * 8 * 64);   // up to 8 rows run alone
  BOOST_TEST(executed("1,4/1,40x64,4,full") == (2 * 64 + 32) * 64);
  const std::int64_t diagonal = 16 * (16 + 32 + 48 + 64);  // each group up to its last row's key
  BOOST_TEST(executed("1,1,64,4,causal") == diagonal);
  BOOST_TEST(executed("1,1,128,4,causal") == 2 * diagonal + 64 * 64);
  BOOST_TEST(executed("1,1,64,4,0") == 4 * 16 * 16);
  BOOST_TEST(executed("1,1,9x14,4,4") == 16 * (14 - 0));  // keys 1 to 13, from 0
  BOOST_TEST(executed("1,1,5x10,4,4") == 5 * (10 - 0));   // keys 1 to 9, from 0
  BOOST_TEST(executed("1,1,1x10,4,4") == 10 - 4);         // keys 5 to 9, from 4
  BOOST_TEST(executed("1,1,3x64,4,full") == 3 * 64);
  // Window 64, second tile: group g of the left tile starts at key 16 g, and its rows end on the tile's edge.
  BOOST_TEST(executed("1,1,128,4,64") == 2 * diagonal + 16 * (64 + 48 + 32 + 16));
}

BOOST_AUTO_TEST_CASE(executed_landmarks_by_hand) {
  const std::int64_t window = executed("1,1,128,4,3");
  // Chunks of 64: list 0 has no candidates, list 1 has 8 before row 64, for all 64 rows of the second tile.
  BOOST_TEST(executed("1,1,128,4,3,8", 64) == window + 8 * 64);
  // Chunks of 24: runs of the first tile are rows 0 to 23, 24 to 47, 48 to 63; they touch 2, 2 and 1 groups of 16.
  BOOST_TEST(executed("1,1,64,4,3,4", 24) == executed("1,1,64,4,3") + 4 * (2 + 1) * 16);
  // Two heads in one tile have a list each: 4 entries for one group of rows each.
  BOOST_TEST(executed("1,2/1,16x64,4,3,4") - executed("1,2/1,16x64,4,3") == 2 * 4 * 16);
  // One list for all: the first tile reaches the entries up to row 63.
  Call call("1,1,128,4,3,4", "constant");
  call.fill_lists({10, 63, 64, 127});
  BOOST_TEST(count_executed_cpu(call.problem, call.inputs) == window + 2 * 64 + 4 * 64);
}

BOOST_AUTO_TEST_CASE(hopper_devices_by_their_description) {
  const auto plain =
      hopper_device("device 0 (NVIDIA H200), compute capability 9.0, 132 multiprocessors, Hopper kernels");
  BOOST_REQUIRE(plain.has_value());
  BOOST_TEST(plain->multiprocessors == 132);
  BOOST_TEST(!plain->deterministic);
  const auto ordered =
      hopper_device("device 1 (X), compute capability 9.0, 78 multiprocessors, Hopper kernels, deterministic");
  BOOST_REQUIRE(ordered.has_value());
  BOOST_TEST(ordered->multiprocessors == 78);
  BOOST_TEST(ordered->deterministic);
  for (const char* other : {"", "device 0 (X), compute capability 8.0, 108 multiprocessors, portable kernels",
                            "device 0 (X), compute capability 9.0, multiprocessors, Hopper kernels", "OpenMP"})
    BOOST_TEST(!hopper_device(other).has_value());
}

/// The same queries and keys, as far as masks go, in bfloat16. -1: not known.
std::int64_t executed_hopper(const std::string& shape, Direction direction, std::int64_t chunk = 0,
                             const HopperDevice& device = {132, false}, DType dtype = DType::bf16) {
  Call call(shape, "constant", chunk);
  for (TensorView* view : {&call.inputs.q, &call.inputs.k, &call.inputs.v}) view->dtype = dtype;
  return count_executed_hopper(device, direction, call.problem, call.inputs).value_or(-1);
}

BOOST_AUTO_TEST_CASE(executed_pairs_of_hopper_by_hand) {
  constexpr Direction forward = Direction::forward, backward = Direction::backward;
  // Forward, sparse: 64 rows by the 64-key tiles from row 0 - w to row 63; tile 0 has no keys before it.
  BOOST_TEST(executed_hopper("1,1,192,64,64", forward) == 64 * 64 * (1 + 2 + 2));
  BOOST_TEST(executed_hopper("1,1,192,64,65", forward) == 64 * 64 * (1 + 2 + 3));
  BOOST_TEST(executed_hopper("1,1,65,64,0", forward) == 64 * 64 * 2);  // 64 of the last 64 rows do not exist but one
  BOOST_TEST(executed_hopper("2,3,65,64,0", forward) == 6 * 64 * 64 * 2);
  BOOST_TEST(executed_hopper("1,1,256,128,0", forward) == 64 * 64 * 4);
  // Landmarks: 32 at a time. Lists of 64 rows; of 128; one for all, of which 22, 43 and 65 lie before the last row
  // of 64.
  BOOST_TEST(executed_hopper("1,1,192,64,0,8", forward, 64) == 3 * 64 * 64 + 64 * 32 * 2);
  BOOST_TEST(executed_hopper("1,1,256,128,0,8", forward, 128) == 4 * 64 * 64 + 2 * 64 * 32);
  BOOST_TEST(executed_hopper("1,1,192,64,0,65", forward) == 3 * 64 * 64 + 64 * (32 + 64 + 96));
  // Backward: 128 keys, each 64 of them for themselves, by 128 rows (D = 64) or 64 (D = 128).
  BOOST_TEST(executed_hopper("1,1,256,64,0", backward) == 2 * 128 * 128);
  BOOST_TEST(executed_hopper("1,1,256,64,1", backward) == (2 + 3) * 64 * 128);
  BOOST_TEST(executed_hopper("1,1,256,128,1", backward) == (1 + 2 + 2 + 2) * 64 * 64);
  BOOST_TEST(executed_hopper("1,2/1,256,64,0", backward) == 2 * 2 * 128 * 128);
  // Landmarks: each list of 128 rows meets its own tiles of rows, the first one too, which is empty. Of 65 entries one
  // has a block of its own.
  BOOST_TEST(executed_hopper("1,1,256,64,0,8", backward, 128) == 2 * 128 * 128 + 2 * 64 * 128);
  BOOST_TEST(executed_hopper("1,1,256,128,0,65", backward, 128) == 4 * 64 * 64 + (2 + 2 * 2) * 64 * 64);
  // Dense: 192 rows by 128 keys where these tiles keep the device busy, else 64 by 64.
  BOOST_TEST(executed_hopper("1,1,192x256,64,full", forward, 0, {1, false}) == 192 * 256);
  BOOST_TEST(executed_hopper("1,1,192x256,64,causal", forward, 0, {1, false}) == 192 * 256);
  BOOST_TEST(executed_hopper("1,1,192,64,causal", forward) == 64 * 64 * (1 + 2 + 3));
  BOOST_TEST(executed_hopper("1,1,192,64,causal", forward, 0, {132, true}) == 192 * 256);
  BOOST_TEST(executed_hopper("1,200,192x65,128,full", forward) == 200 * 192 * 128);
  BOOST_TEST(executed_hopper("1,1,256,64,causal", backward) == 3 * 128 * 128);
  BOOST_TEST(executed_hopper("1,1,100x256,64,causal", backward) == 2 * 128 * 128);
  BOOST_TEST(executed_hopper("1,1,256x100,64,causal", backward) == 128 * 128);  // rows before 156 see nothing
  BOOST_TEST(executed_hopper("1,1,256,128,full", backward) == 2 * 4 * 128 * 64);
}

BOOST_AUTO_TEST_CASE(calls_of_portable_kernels_have_no_known_tiles) {
  constexpr Direction forward = Direction::forward, backward = Direction::backward;
  BOOST_TEST(executed_hopper("1,1,64,64,full", forward, 0, {132, false}, DType::f32) == -1);
  BOOST_TEST(executed_hopper("1,1,64,32,full", forward) == -1);
  BOOST_TEST(executed_hopper("1,1,64,64,3,4", forward, 31) == -1);
  BOOST_TEST(executed_hopper("1,1,64,64,3,4", forward, 32) > 0);
  BOOST_TEST(executed_hopper("1,1,64,64,3,4", backward, 0, {132, true}) == -1);
  BOOST_TEST(executed_hopper("1,1,64,64,causal", backward, 0, {132, true}) > 0);
}

BOOST_AUTO_TEST_CASE(drawn_lists_are_those_a_causal_selection_could_make) {
  for (const std::int64_t chunk : {0, 7, 64}) {
    const Shape shape = settled(parse_shape("2,3,200,4,5,9"), "", chunk);
    const Tensor lists = draw_landmarks(shape);
    const TensorView& view = lists;
    BOOST_TEST(view.shape[2] == (chunk ? (200 + chunk - 1) / chunk : 1));
    for (std::int64_t n = 0; n < view.size(); n += 9) {
      const std::int64_t t = n / 9 % view.shape[2], candidates = chunk ? std::min<std::int64_t>(200, t * chunk) : 200;
      std::int64_t used = 0, before = -1;
      for (std::int64_t slot = 0; slot < 9; ++slot) {
        const std::int32_t l = *view.at<std::int32_t>(n + slot);
        if (l == -1) continue;
        BOOST_TEST(used == slot);  // unused slots come last
        BOOST_TEST(l > before);
        BOOST_TEST(l < candidates);
        before = l;
        ++used;
      }
      BOOST_TEST(used == std::min<std::int64_t>(9, candidates));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
