// evaluate(): the outputs that the contract lists, from any backend, on host and device memory.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <set>

#include "case_support.hpp"

using namespace case_support;

namespace {

std::set<std::string> names_of(const Tensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

/// evaluate() must return exactly these.
void check_outputs(const char* name, const std::set<std::string>& expected) {
  const auto reference = make_backend("reference");
  const Case c = generate_case(name);
  const std::vector<std::string> listed = expected_outputs(c);
  BOOST_TEST((std::set<std::string>(listed.begin(), listed.end()) == expected), name);
  BOOST_TEST((names_of(evaluate(*reference, c)) == expected), name);
}

/// A reference backend behind a wall: its memory counts as a device's, and only its copies may cross.
class FarBackend : public Backend {
 public:
  FarBackend() : inner_(make_backend("reference")) {}
  std::string_view name() const override { return "far"; }
  std::string description() const override { return "the reference in other memory"; }
  Device device() const override { return {DeviceType::cuda, 3}; }
  Reproducibility reproducibility(Operation op, Direction d) const override { return inner_->reproducibility(op, d); }
  Support supports(Operation op, Direction d, DType t) const override { return inner_->supports(op, d, t); }
  void copy_to_host(void* host, const void* source, std::size_t bytes) override {
    ++copies_back;
    Backend::copy_to_host(host, source, bytes);
  }
  void copy_from_host(void* destination, const void* host, std::size_t bytes) override {
    ++copies_in;
    Backend::copy_from_host(destination, host, bytes);
  }
  void attention_forward(const AttentionProblem& p, const AttentionInputs& in, const AttentionOutputs& out) override {
    inner_->attention_forward(p, near(in), {near(out.out), near(out.lse)});
  }
  void attention_backward(const AttentionProblem& p, const AttentionInputs& in, const AttentionSaved& s,
                          const AttentionGradients& g) override {
    inner_->attention_backward(p, near(in), {near(s.out), near(s.lse), near(s.dout), near(s.dlse)},
                               {near(g.dq), near(g.dk), near(g.dv), near(g.dwindow), near(g.dlandmark_log_weight)});
  }
  void adamw_step(const AdamWProblem& p, const AdamWInputs& in, const AdamWOutputs& out) override {
    inner_->adamw_step(p, {near(in.param), near(in.grad), near(in.m), near(in.v)},
                       {near(out.param), near(out.m), near(out.v)});
  }
  // The other operations are not asked for here.
  void merge(const MergeInputs&, const AttentionOutputs&) override { refuse(); }
  void window_sizes_forward(const WindowProblem&, const WindowInputs&, const TensorView&) override { refuse(); }
  void window_sizes_backward(const WindowProblem&, const WindowInputs&, const TensorView&,
                             const WindowGradients&) override {
    refuse();
  }
  void energies_forward(const EnergyInputs&, const Energies&) override { refuse(); }
  void energies_backward(const EnergyInputs&, const Energies&, const EnergyGradients&) override { refuse(); }
  void select_landmarks_forward(const SelectionProblem&, const SelectionInputs&, const SelectionOutputs&) override {
    refuse();
  }
  void select_landmarks_backward(const SelectionProblem&, const SelectionInputs&, const SelectionSaved&,
                                 const SelectionGradients&) override {
    refuse();
  }
  void rmsnorm_forward(const RmsNormProblem&, const RmsNormInputs&, const TensorView&) override { refuse(); }
  void rmsnorm_backward(const RmsNormProblem&, const RmsNormInputs&, const TensorView&,
                        const RmsNormGradients&) override {
    refuse();
  }
  void rope_forward(const RopeProblem&, const RopeInputs&, const TensorView&) override { refuse(); }
  void rope_backward(const RopeProblem&, const RopeInputs&, const TensorView&, const TensorView&) override { refuse(); }
  void swiglu_forward(const SwigluInputs&, const TensorView&) override { refuse(); }
  void swiglu_backward(const SwigluInputs&, const TensorView&, const SwigluGradients&) override { refuse(); }
  void cross_entropy_forward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView&) override {
    refuse();
  }
  void cross_entropy_backward(const CrossEntropyProblem&, const CrossEntropyInputs&, const TensorView&,
                              const CrossEntropyGradients&) override {
    refuse();
  }

  int copies_in = 0, copies_back = 0;

 private:
  [[noreturn]] static void refuse() { throw Unsupported("far: not asked for"); }
  /// Every view that arrives must be of this device; seen from the reference it is host memory.
  static TensorView near(TensorView view) {
    if (!view.present()) return view;
    BOOST_TEST((view.device == Device{DeviceType::cuda, 3}));
    view.device = {};
    return view;
  }
  static AttentionInputs near(const AttentionInputs& in) {
    return {near(in.q),
            near(in.k),
            near(in.v),
            near(in.window),
            near(in.landmarks),
            near(in.landmark_log_weight),
            near(in.cu_seqlens_q),
            near(in.cu_seqlens_k),
            near(in.k_lengths),
            near(in.page_table)};
  }

  std::unique_ptr<Backend> inner_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(case_evaluate)

BOOST_AUTO_TEST_CASE(listed_outputs) {
  check_outputs("attention/lse_gradient/forward_only_f32", {"out", "lse"});
  check_outputs("attention/lse_gradient/both_bf16", {"out", "lse", "dq", "dk", "dv"});
  check_outputs("attention/window/uniform_1_heads_f16", {"out", "lse", "dq", "dk", "dv", "dwindow"});
  check_outputs("attention/window/integers_1_heads_f64", {"out", "lse", "dq", "dk", "dv"});
  check_outputs("attention/landmark_weights/moderate_4_heads_f32",
                {"out", "lse", "dq", "dk", "dv", "dwindow", "dlandmark_log_weight"});
  check_outputs("merge/parts/packed_similar_f32", {"out", "lse"});
  check_outputs("window_sizes/shapes/padded_f32", {"window", "dx", "dweight", "dbias"});
  check_outputs("window_sizes/shapes/padded_forward_f32", {"window"});
  check_outputs("energies/shapes/padded_f32", {"nx", "nv", "dx", "dv"});
  check_outputs("energies/shapes/dnx_only_f32", {"nx", "nv", "dx"});
  check_outputs("energies/shapes/dnv_only_f32", {"nx", "nv", "dv"});
  check_outputs("select_landmarks/policies/causal_forward_f32", {"landmarks", "score", "landmark_log_weight"});
  check_outputs("select_landmarks/policies/causal_detached_f32",
                {"landmarks", "score", "landmark_log_weight", "dalpha_raw"});
  check_outputs("select_landmarks/packed/global_plain_f64",
                {"landmarks", "score", "landmark_log_weight", "dalpha_raw", "dnx", "dnv"});
  check_outputs("rmsnorm/shapes/batch_f16", {"y", "dx", "dgamma"});
  check_outputs("rope/positions/packed_bf16", {"y", "dx"});
  check_outputs("swiglu/shapes/matrix_f32", {"y", "dgate", "dup"});
  check_outputs("cross_entropy/shapes/usual_f32", {"loss", "dhidden", "dweight"});
  check_outputs("cross_entropy/shapes/forward_f32", {"loss"});
  check_outputs("adamw/steps/step_2_f32", {"param", "m", "v"});
}

BOOST_AUTO_TEST_CASE(dtypes_of_outputs) {
  const auto reference = make_backend("reference");
  const Tensors out = evaluate(*reference, generate_case("attention/landmark_weights/moderate_4_heads_bf16"));
  for (const char* name : {"out", "dq", "dk", "dv"}) BOOST_TEST((out.at(name).view().dtype == DType::bf16), name);
  for (const char* name : {"lse", "dwindow", "dlandmark_log_weight"})
    BOOST_TEST((out.at(name).view().dtype == DType::f32), name);
  const Tensors loss = evaluate(*reference, generate_case("cross_entropy/shapes/usual_f16"));
  BOOST_TEST((loss.at("loss").view().dtype == DType::f32));
  BOOST_TEST(loss.at("loss").view().rank == 0);
  const Tensors lists = evaluate(*reference, generate_case("select_landmarks/policies/global_usual_f64"));
  BOOST_TEST((lists.at("landmarks").view().dtype == DType::i32));
  BOOST_TEST((lists.at("score").view().dtype == DType::f64));
}

BOOST_AUTO_TEST_CASE(rows_that_nothing_writes_keep_their_start) {
  const auto reference = make_backend("reference");
  const Tensors out = evaluate(*reference, generate_case("attention/packed/tail_causal_f32"));
  const TensorView& values = out.at("out").view();
  const TensorView& lse = out.at("lse").view();
  const TensorView tail = values.narrow(0, 43, 3), lse_tail = lse.narrow(0, 43, 3);
  BOOST_REQUIRE(values.shape[0] == 46);
  for (std::int64_t n = 0; n < tail.size(); ++n) BOOST_TEST(*tail.at<float>(n) == 0.0f);
  for (std::int64_t n = 0; n < lse_tail.size(); ++n) BOOST_TEST(*lse_tail.at<float>(n) == -HUGE_VALF);
  const TensorView dq = out.at("dq").view().narrow(0, 43, 3);
  for (std::int64_t n = 0; n < dq.size(); ++n) BOOST_TEST(*dq.at<float>(n) == 0.0f);
}

BOOST_AUTO_TEST_CASE(a_paged_cache_has_no_gradients) {
  const auto reference = make_backend("reference");
  Case c = generate_case("attention/paged/causal_1_f32");
  BOOST_CHECK_NO_THROW(evaluate(*reference, c));
  c.inputs["dout"] = Tensor::zeros({4, 4, 1, 8}, DType::f32);
  const std::string message = message_of<InvalidArgument>([&] { evaluate(*reference, c); });
  BOOST_TEST(contains(message, "page_table: got int32 [4,5], need none in the backward pass"), message);
}

BOOST_AUTO_TEST_CASE(to_double_is_exact_and_changes_nothing_else) {
  const Case c = generate_case("attention/landmark_weights/moderate_4_heads_messy_f16");
  const Case wide = to_double(c);
  BOOST_TEST(wide.inputs.size() == c.inputs.size());
  BOOST_TEST((wide.inputs.at("q").view().dtype == DType::f64));
  BOOST_TEST((wide.inputs.at("landmark_log_weight").view().dtype == DType::f64));
  BOOST_TEST(same_bits(wide.inputs.at("landmarks"), c.inputs.at("landmarks")));
  BOOST_TEST((wide.attributes == c.attributes));
  Tensor back = Tensor::empty({1, 4, 25, 8}, DType::f16);
  copy_elements(wide.inputs.at("q"), back);
  BOOST_TEST(same_bits(back, c.inputs.at("q")));
  BOOST_CHECK_NO_THROW(check_schema(wide));
}

BOOST_AUTO_TEST_CASE(strided_inputs_give_the_bytes_of_contiguous_ones) {
  const auto reference = make_backend("reference");
  int strided = 0;
  for (const GeneratedCase& generated : generated_cases()) {
    if (generated.family.find("strided") == std::string::npos) continue;
    const Case c = generate_case(generated.name);
    Case packed = c;
    for (auto& [name, tensor] : packed.inputs) {
      strided += !tensor.view().contiguous();
      tensor = contiguous(tensor);
    }
    BOOST_TEST(same_bits(evaluate(*reference, c), evaluate(*reference, packed)), generated.name);
  }
  BOOST_TEST(strided > 50);
}

BOOST_AUTO_TEST_CASE(device_backends_get_device_tensors) {
  FarBackend far;
  const auto reference = make_backend("reference");
  for (const char* name :
       {"attention/everything/03_bf16", "attention/packed/tail_sparse_f32", "attention/strided_views/slices_f16",
        "attention/empty/no_tokens_sparse_f32", "adamw/strided/permuted_f32"}) {
    const Case c = generate_case(name);
    BOOST_TEST(same_bits(evaluate(far, c), evaluate(*reference, c)), name);
  }
  BOOST_TEST(far.copies_in > 20);
  BOOST_TEST(far.copies_back > 20);
}

BOOST_AUTO_TEST_CASE(refusals) {
  const auto cpu = make_backend("cpu");
  const auto reference = make_backend("reference");
  BOOST_CHECK_THROW(evaluate(*cpu, generate_case("rmsnorm/shapes/vector_f64")), Unsupported);
  Case c = generate_case("attention/dropout/half_f32");
  c.attributes["dropout_offset"] = std::int64_t{1} << 32;
  BOOST_TEST(contains(message_of<InvalidArgument>([&] { evaluate(*reference, c); }), "dropout_offset"));
  c = generate_case("attention/scale/one_f32");
  c.attributes["mask"] = std::string("diagonal");
  BOOST_TEST(contains(message_of<InvalidArgument>([&] { evaluate(*reference, c); }), "mask: got \"diagonal\""));
  c = generate_case("select_landmarks/policies/causal_usual_f32");
  c.attributes["policy"] = std::string("future");
  BOOST_TEST(contains(message_of<InvalidArgument>([&] { evaluate(*reference, c); }), "policy: got \"future\""));
}

BOOST_AUTO_TEST_CASE(an_attribute_cannot_ask_for_endless_memory) {
  const auto reference = make_backend("reference");
  Case c = generate_case("select_landmarks/policies/causal_forward_f32");
  for (const std::int64_t k :
       {std::int64_t{1} << 34, std::int64_t{1} << 62, std::numeric_limits<std::int64_t>::max()}) {
    c.attributes["k"] = k;
    const std::string message = message_of<InvalidArgument>([&] { evaluate(*reference, c); });
    BOOST_TEST(contains(message, "landmarks: got an output of int32"), message);
  }
  c.attributes["k"] = std::int64_t{-1};
  BOOST_TEST(contains(message_of<InvalidArgument>([&] { evaluate(*reference, c); }), "k: got -1"));
}

BOOST_AUTO_TEST_SUITE_END()
