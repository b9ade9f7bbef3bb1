// `dsalt bench` on the CUDA module's own kernels, emulated on the host: the rule of executed pairs against what the
// kernels multiply, and the columns that a device fills.
#include <dlfcn.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "bench/data.hpp"
#include "bench/pairs.hpp"
#include "dsalt/registry.hpp"
#include "run_command.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::benchmark;
using Json = nlohmann::json;

std::unique_ptr<Backend> emulated_hopper(int multiprocessors, bool deterministic) {
  setenv("DSALT_EMULATED_CAPABILITY", "90", 1);
  setenv("DSALT_EMULATED_MULTIPROCESSORS", std::to_string(multiprocessors).c_str(), 1);
  BackendOptions options;
  options.module_path = DSALT_TEST_EMULATED;
  options.deterministic = deterministic;
  return make_backend("cuda", options);
}

/// Multiply-adds of the products whose first operand is in registers: P V forward; P^T dO and dS^T Q backward. These
/// are D for each executed pair and product.
std::int64_t multiplications() {
  void* const module = dlopen(DSALT_TEST_EMULATED, RTLD_NOW | RTLD_NOLOAD);
  BOOST_REQUIRE(module != nullptr);
  const auto count = reinterpret_cast<std::uint64_t (*)()>(dlsym(module, "dsalt_emulated_register_multiplications"));
  BOOST_REQUIRE(count != nullptr);
  const auto result = static_cast<std::int64_t>(count());
  dlclose(module);
  return result;
}

void check_executed(Backend& backend, const std::string& text, const std::string& kind, std::int64_t chunk) {
  const Shape shape = settled(parse_shape(text), kind, chunk);
  const std::int64_t q_shape[] = {shape.batch, shape.heads, shape.queries, shape.width};
  const std::int64_t k_shape[] = {shape.batch, shape.kv_heads, shape.keys, shape.width};
  const std::int64_t row_shape[] = {shape.batch, shape.heads, shape.queries};
  constexpr DType dtype = DType::bf16;
  AttentionProblem problem;
  problem.mask = shape.mask;
  if (shape.chunk > 0) problem.landmark_chunk = shape.chunk;
  const Tensor q = random_tensor(backend, q_shape, dtype, 1), k = random_tensor(backend, k_shape, dtype, 2),
               v = random_tensor(backend, k_shape, dtype, 3), dout = random_tensor(backend, q_shape, dtype, 4),
               out = output_tensor(backend, q_shape, dtype), lse = output_tensor(backend, row_shape, DType::f32),
               dq = output_tensor(backend, q_shape, dtype), dk = output_tensor(backend, k_shape, dtype),
               dv = output_tensor(backend, k_shape, dtype);
  const Tensor windows = shape.sparse() ? draw_windows(shape) : Tensor(),
               lists = shape.landmarks > 0 ? draw_landmarks(shape) : Tensor();
  AttentionInputs host;
  host.q = q;
  host.k = k;
  host.v = v;
  host.window = windows;
  host.landmarks = lists;
  AttentionInputs inputs = host;
  const Tensor device_windows = on_device(backend, windows), device_lists = on_device(backend, lists);
  inputs.window = device_windows;
  inputs.landmarks = device_lists;

  const auto device = hopper_device(backend.description());
  BOOST_REQUIRE(device.has_value());
  const auto check = [&](Direction direction, int products, auto&& call) {
    const auto expected = count_executed_hopper(*device, direction, problem, host);
    BOOST_REQUIRE(expected.has_value());
    const std::int64_t before = multiplications();
    call();
    backend.synchronize();
    BOOST_TEST((multiplications() - before) / (products * shape.width) == *expected);
  };
  check(Direction::forward, 1, [&] { attention_forward(backend, problem, inputs, {.out = out, .lse = lse}); });
  if (device->deterministic && shape.sparse()) return;  // the portable kernels
  AttentionSaved saved;
  saved.out = out;
  saved.lse = lse;
  saved.dout = dout;
  AttentionGradients gradients;
  gradients.dq = dq;
  gradients.dk = dk;
  gradients.dv = dv;
  check(Direction::backward, 2, [&] { attention_backward(backend, problem, inputs, saved, gradients); });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bench_emulated)

BOOST_AUTO_TEST_CASE(hopper_kernels_execute_the_pairs_that_are_counted) {
  for (const int multiprocessors : {1, 132})
    for (const bool deterministic : {false, true}) {
      const auto backend = emulated_hopper(multiprocessors, deterministic);
      for (const char* shape : {"1,1,300,64,causal", "1,2/1,200x330,128,causal", "1,1,330x200,64,causal",
                                "2,1,51x300,64,full", "1,2,200x100,128,full", "1,1,100x200,64,full"})
        BOOST_TEST_CONTEXT(backend->description() << " " << shape) check_executed(*backend, shape, "", 0);
      if (multiprocessors == 132) continue;
      for (const auto& [shape, windows, chunk] : {std::tuple("1,2,300,64,100,8", "constant", 0),
                                                  {"1,2/1,270,128,150,8", "uniform", 0},
                                                  {"2,1,330,64,200,70", "bimodal", 96},
                                                  {"1,1,300,128,40,140", "uniform", 50},
                                                  {"1,2,70x330,64,90,70", "constant", 0},
                                                  {"1,1,330x200,128,60,5", "constant", 0},
                                                  {"1,2,257,64,300,0", "uniform", 0},
                                                  {"2,4/2,17x300,64,90,8", "constant", 0}})
        BOOST_TEST_CONTEXT(backend->description() << " " << shape << " " << windows << " chunk " << chunk)
      check_executed(*backend, shape, windows, chunk);
    }
}

BOOST_AUTO_TEST_CASE(memory_counts_tensors_and_what_calls_take) {
  const auto backend = emulated_hopper(8, false);
  const auto use = [&](bool start_anew = false) { return backend->memory_use(start_anew).value(); };
  const std::size_t before = use(true).now;
  {
    const Tensor x = output_tensor(*backend, {1, 1, 64, 64}, DType::bf16);
    BOOST_TEST(use().now == before + 64 * 64 * 2);
    BOOST_TEST(use().most == use().now);
    AttentionProblem problem;
    problem.mask = Mask::full;
    AttentionInputs inputs;
    inputs.q = inputs.k = inputs.v = x;
    const Tensor out = output_tensor(*backend, {1, 1, 64, 64}, DType::bf16),
                 lse = output_tensor(*backend, {1, 1, 64}, DType::f32);
    attention_forward(*backend, problem, inputs, {.out = out, .lse = lse});
    AttentionSaved saved;
    saved.out = saved.dout = out;
    saved.lse = lse;
    const Tensor dq = output_tensor(*backend, {1, 1, 64, 64}, DType::bf16);
    AttentionGradients gradients;
    gradients.dq = dq;
    const std::size_t tensors = use(true).now;
    attention_backward(*backend, problem, inputs, saved, gradients);
    backend->synchronize();
    BOOST_TEST(use().now == tensors);
    BOOST_TEST(use().most >= tensors + 64 * 64 * 4);  // float32 sums of dq
    BOOST_TEST(use(true).most < tensors + 1000000);
    BOOST_TEST(use().most == tensors);
    {
      const Tensor more = output_tensor(*backend, {1, 1, 64, 64}, DType::bf16);
      use(true);
    }
    BOOST_TEST(use().most == tensors + 64 * 64 * 2);  // what was in use when the mark was set, though it went since
  }
  BOOST_TEST(use().now == before);
  BOOST_TEST(!make_backend("cpu")->memory_use(false).has_value());
}

BOOST_AUTO_TEST_CASE(a_device_fills_every_column_of_attention) {
  const std::string json = scratch("emulated.json").string(), html = scratch("emulated.html").string();
  const Outcome outcome = run_dsalt(
      "bench --backend cuda --operation 'attention*' --shape 1,2,150,64,40,8 --windows constant --windows uniform "
      "--windows bimodal --dtype bf16 --dtype f32 --min-time 0 --json " +
          json + " --report " + html,
      "DSALT_MODULE_PATH=" DSALT_TEST_EMULATED " DSALT_EMULATED_CAPABILITY=90 DSALT_EMULATED_MULTIPROCESSORS=8");
  BOOST_REQUIRE_MESSAGE(outcome.code == 0, outcome.out << outcome.err);
  const Json file = Json::parse(read_file(json));
  BOOST_REQUIRE(file["rows"].size() == 12u);
  for (const Json& row : file["rows"]) {
    BOOST_TEST_CONTEXT(row.dump()) {
      // Beside its tensors a call has clean lists: 8 bytes for each of 8 slots of 2 lists of 2 heads. Backward it has
      // at least a float32 for every element of dq in 16 bits.
      const bool is_bf16 = row["dtype"] == "bfloat16", backward = row["operation"] == "attention_backward";
      BOOST_TEST(row["peak_bytes"].get<double>() >= (backward && is_bf16 ? 2 * 150 * 64 * 4 : 2 * 2 * 8 * 8));
      BOOST_TEST(row["peak_bytes"].get<double>() < 4e6);
      for (const char* name : {"executed_pairs", "tile_efficiency"}) BOOST_TEST(row[name].is_null() == !is_bf16);
      if (!is_bf16) continue;
      BOOST_TEST(row["executed_pairs"].get<double>() >= row["pairs"].get<double>());
    }
  }
  for (const char* kind : {"constant", "uniform", "bimodal"})
    BOOST_TEST(contains(outcome.out, std::string(kind) + " chunk 128"));
}

BOOST_AUTO_TEST_SUITE_END()
