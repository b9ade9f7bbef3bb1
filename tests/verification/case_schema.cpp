// What a case may contain: unknown, missing and mistyped parts are named.
#include <boost/test/unit_test.hpp>

#include "case_support.hpp"

using namespace case_support;

namespace {

std::string fault(const Case& c) {
  return message_of<InvalidArgument>([&] { check_schema(c); });
}

Case attention() { return generate_case("attention/everything/00_f32"); }
Case plain() { return generate_case("attention/scale/one_f32"); }

}  // namespace

BOOST_AUTO_TEST_SUITE(case_schema)

BOOST_AUTO_TEST_CASE(every_generated_case_is_valid) {
  for (const GeneratedCase& generated : generated_cases()) {
    if (!generated.quick) continue;
    BOOST_CHECK_NO_THROW(check_schema(generate_case(generated.name)));
  }
}

BOOST_AUTO_TEST_CASE(operation_names) {
  for (const Operation op : all_operations) BOOST_TEST((operation_from_name(name_of(op)) == op));
  const std::string message = message_of<InvalidArgument>([] { operation_from_name("attentoin"); });
  BOOST_TEST(contains(message, "attentoin"), message);
  BOOST_TEST(contains(message, "select_landmarks"), message);
}

BOOST_AUTO_TEST_CASE(unknown_and_missing_parts_are_named) {
  Case c = attention();
  c.attributes["scales"] = 1.0;
  BOOST_TEST(contains(fault(c), "scales: unknown attribute of attention"), fault(c));
  c = attention();
  c.inputs["bias"] = Tensor::zeros({1}, DType::f32);
  BOOST_TEST(contains(fault(c), "bias: unknown input of attention"), fault(c));
  c = plain();
  c.attributes.erase("mask");
  BOOST_TEST(contains(fault(c), "mask: missing attribute"), fault(c));
  c = plain();
  c.inputs.erase("k");
  BOOST_TEST(contains(fault(c), "k: missing input"), fault(c));
  c = plain();
  c.inputs.erase("q");
  BOOST_TEST(contains(message_of<InvalidArgument>([&] { main_dtype(c); }), "q: missing input"));
  c = plain();
  c.outputs["dwindow"] = Tensor::zeros({1}, DType::f32);  // this case has no window
  BOOST_TEST(contains(fault(c), "dwindow: unknown output"), fault(c));
}

BOOST_AUTO_TEST_CASE(parts_that_belong_together) {
  Case c = plain();
  c.attributes["soft_edge"] = 1.0;
  BOOST_TEST(contains(fault(c), "soft_tau: missing attribute; soft_edge needs it"), fault(c));
  c = plain();
  c.attributes["dropout_p"] = 0.5;
  BOOST_TEST(contains(fault(c), "dropout_seed: missing attribute"), fault(c));
  c.attributes["dropout_seed"] = std::int64_t{1};
  BOOST_TEST(contains(fault(c), "dropout_offset: missing attribute"), fault(c));
  c = plain();
  c.inputs.erase("dout");
  c.inputs["dlse"] = Tensor::zeros({1, 2, 24}, DType::f32);
  BOOST_TEST(contains(fault(c), "dout: missing input; dlse needs it"), fault(c));
  c = generate_case("attention/paged/causal_1_f32");
  c.inputs.erase("k_lengths");
  BOOST_TEST(contains(fault(c), "k_lengths: missing input; page_table needs it"), fault(c));
  c = generate_case("attention/packed/plain_causal_f32");
  c.inputs.erase("cu_seqlens_k");
  BOOST_TEST(contains(fault(c), "cu_seqlens_k: missing input"), fault(c));
}

BOOST_AUTO_TEST_CASE(types_of_attributes) {
  Case c = plain();
  c.attributes["scale"] = std::int64_t{2};  // a whole number passes for a real one
  BOOST_TEST(fault(c) == "nothing was thrown");
  c.attributes["scale"] = std::string("2");
  BOOST_TEST(contains(fault(c), "scale: got string \"2\", need a float64"), fault(c));
  c = plain();
  c.attributes["landmark_chunk"] = 8.0;  // and a whole real for a whole number
  BOOST_TEST(fault(c) == "nothing was thrown");
  for (const double bad : {8.5, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    c.attributes["landmark_chunk"] = bad;
    BOOST_TEST(contains(fault(c), "need an int64"), fault(c));
  }
  for (const std::int64_t good : {0, 1}) {
    c = plain();
    c.attributes["bidirectional"] = good;
    BOOST_TEST(fault(c) == "nothing was thrown");
  }
  c.attributes["bidirectional"] = std::int64_t{2};
  BOOST_TEST(contains(fault(c), "bidirectional: got int64 2, need an int64 0 or 1"), fault(c));
  c = plain();
  c.attributes["mask"] = std::int64_t{1};
  BOOST_TEST(contains(fault(c), "mask: got int64 1, need a string"), fault(c));
}

BOOST_AUTO_TEST_CASE(dtypes_and_ranks_of_inputs) {
  Case c = plain();
  c.inputs["k"] = Tensor::zeros({1, 1, 24, 16}, DType::bf16);
  BOOST_TEST(contains(fault(c), "k: got bfloat16"), fault(c));
  c = plain();
  c.inputs["dlse"] = Tensor::zeros({1, 2, 24}, DType::f64);
  BOOST_TEST(contains(fault(c), "dlse: got float64"), fault(c));
  c = plain();
  c.inputs["q"] = Tensor::zeros({2, 3}, DType::f32);
  BOOST_TEST(contains(fault(c), "q: got float32 [2,3], need rank 3 or 4"), fault(c));
  c = plain();
  c.inputs["q"] = Tensor::zeros({1, 2, 24, 16}, DType::i32);
  BOOST_TEST(contains(fault(c), "q: got int32"), fault(c));
  c = generate_case("adamw/steps/step_10_f32");
  c.inputs["m"] = Tensor::zeros({7, 13}, DType::f64);
  BOOST_TEST(contains(fault(c), "m: got float64"), fault(c));
  c = generate_case("cross_entropy/labels/some_ignored_bf16");
  c.inputs["dloss"] = Tensor::zeros({1}, DType::f32);
  BOOST_TEST(contains(fault(c), "dloss: got float32 [1], need rank 0"), fault(c));
}

BOOST_AUTO_TEST_SUITE_END()
