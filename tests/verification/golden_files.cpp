// generate, check, run and show on files: what they report and what they write.
#include <boost/test/unit_test.hpp>

#include "case_support.hpp"
#include "dsalt/verification/golden.hpp"

using namespace case_support;

namespace {

std::size_t count_of(const std::vector<Result>& results, Status status) {
  return static_cast<std::size_t>(
      std::count_if(results.begin(), results.end(), [&](const Result& result) { return result.status == status; }));
}

/// Rewrites a file after `change` has seen each case.
template <class Change>
void rewrite(const std::string& from, const std::string& to, const Change& change) {
  const CaseReader reader(from);
  CaseWriter writer(to, "changed");
  for (const std::string& name : reader.names()) {
    Case c = reader.read(name);
    change(c);
    writer.add(c);
  }
  writer.commit();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_files)

BOOST_AUTO_TEST_CASE(generate_check_run_check) {
  const Scratch scratch;
  const auto reference = make_backend("reference");
  std::vector<std::size_t> steps;
  const std::size_t count =
      generate_golden(scratch / "a.h5", "[am]*/s*", [&](std::string_view, std::size_t done, std::size_t total) {
        BOOST_TEST(done < total);
        steps.push_back(done);
      });
  BOOST_TEST(count > 50u);
  BOOST_TEST(steps.size() == count);
  const auto results = check_golden(scratch / "a.h5", *reference);
  BOOST_TEST(results.size() == count);
  for (const Result& result : results) {
    const bool no_elements = contains(result.name, "nothing");
    BOOST_TEST((result.status == (no_elements ? Status::skipped : Status::passed)),
               result.name << ": " << result.message);
  }
  BOOST_TEST(results.front().suite == "golden");
  BOOST_TEST(results.front().backend == "reference");

  // Evaluated again without its outputs, the file gets the same outputs.
  rewrite(scratch / "a.h5", scratch / "inputs.h5", [](Case& c) { c.outputs.clear(); });
  const auto run = run_cases(scratch / "inputs.h5", scratch / "b.h5", *reference);
  BOOST_TEST(count_of(run, Status::passed) == count);
  const CaseReader a(scratch / "a.h5"), b(scratch / "b.h5");
  for (const std::string& name : a.names()) BOOST_TEST(same_case(a.read(name), b.read(name)), name);

  const std::string shown = describe_cases(scratch / "a.h5", "attention.scale.zero_*");
  for (const char* part : {"cases by dsalt", "attention.scale.zero_bf16", "op attention", "mask causal", "scale 0",
                           "in  q bfloat16 [1,2,24,16]", "out dq bfloat16 [1,2,24,16]", "out lse float32 [1,2,24]"})
    BOOST_TEST(contains(shown, part), part);
  BOOST_TEST(!contains(shown, "attention.scale.one"));
}

BOOST_AUTO_TEST_CASE(patterns) {
  const Scratch scratch;
  const auto reference = make_backend("reference");
  BOOST_CHECK_THROW(generate_golden(scratch / "none.h5", "nothing/*"), InvalidArgument);
  BOOST_TEST(!std::filesystem::exists(scratch / "none.h5"));
  generate_golden(scratch / "a.h5", "swiglu/*");
  BOOST_TEST(check_golden(scratch / "a.h5", *reference, "swiglu.extremes.edges_f32").size() == 1u);
  BOOST_TEST(check_golden(scratch / "a.h5", *reference, "swiglu/extremes/edges_f32").size() == 1u);
  BOOST_TEST(check_golden(scratch / "a.h5", *reference, "nothing").empty());
}

BOOST_AUTO_TEST_CASE(a_changed_output_is_found) {
  const Scratch scratch;
  const auto reference = make_backend("reference");
  generate_golden(scratch / "a.h5", "attention/scale/odd_f32");
  const auto change = [&](const char* output, const std::function<void(Tensor&)>& how) {
    rewrite(scratch / "a.h5", scratch / "b.h5", [&](Case& c) { how(c.outputs.at(output)); });
    const auto results = check_golden(scratch / "b.h5", *reference);
    BOOST_REQUIRE(results.size() == 1u);
    BOOST_TEST((results[0].status == Status::failed));
    BOOST_TEST(contains(results[0].message, output), results[0].message);
    return results[0].message;
  };
  for (const char* output : {"out", "lse", "dq", "dk", "dv"}) {
    change(output, [](Tensor& tensor) { *tensor.view().at<float>(7) += 0.01f; });
    change(output, [](Tensor& tensor) { *tensor.view().at<float>(0) = NAN; });
    const std::string message = change(output, [](Tensor& tensor) {
      Tensor wide = Tensor::empty(std::span(tensor.view().shape.data(), static_cast<std::size_t>(tensor.view().rank)),
                                  DType::f64);
      copy_elements(tensor, wide);
      tensor = wide;
    });
    BOOST_TEST(contains(message, "the file has float64"), message);
  }
  rewrite(scratch / "a.h5", scratch / "b.h5", [](Case& c) { c.outputs.erase("dk"); });
  const auto missing = check_golden(scratch / "b.h5", *reference);
  BOOST_TEST((missing[0].status == Status::failed));
  BOOST_TEST(contains(missing[0].message, "dk: the file has no such output"), missing[0].message);
}

BOOST_AUTO_TEST_CASE(unsupported_and_invalid_cases_are_named_and_the_others_written) {
  const Scratch scratch;
  const auto cpu = make_backend("cpu");
  {
    CaseWriter writer(scratch / "in.h5", "mixed");
    for (const char* name : {"rmsnorm/shapes/vector_f64", "rmsnorm/shapes/vector_f32", "rmsnorm/shapes/matrix_f32"}) {
      Case c = generate_case(name);
      std::replace(c.name.begin(), c.name.end(), '/', '.');
      if (contains(name, "matrix")) c.attributes["epsilon"] = 1.0;
      writer.add(c);
    }
    Case c = generate_case("cross_entropy/labels/some_ignored_f32");
    c.name = "wrong label";
    *c.inputs.at("labels").view().at<std::int32_t>(0) = 33;
    writer.add(c);
    writer.commit();
  }
  const auto results = run_cases(scratch / "in.h5", scratch / "out.h5", *cpu);
  BOOST_REQUIRE(results.size() == 4u);
  BOOST_TEST((results[0].status == Status::failed));  // rmsnorm.shapes.matrix_f32
  BOOST_TEST(contains(results[0].message, "epsilon: unknown attribute"), results[0].message);
  BOOST_TEST((results[1].status == Status::passed));
  BOOST_TEST((results[2].status == Status::unsupported));
  BOOST_TEST(results[2].name == "rmsnorm.shapes.vector_f64");
  BOOST_TEST(!results[2].message.empty());
  BOOST_TEST((results[3].status == Status::failed));
  BOOST_TEST(contains(results[3].message, "labels"), results[3].message);
  const CaseReader out(scratch / "out.h5");
  BOOST_TEST((out.names() == std::vector<std::string>{"rmsnorm.shapes.vector_f32"}));
  BOOST_TEST(out.read("rmsnorm.shapes.vector_f32").outputs.size() == 3u);
}

BOOST_AUTO_TEST_CASE(running_a_file_onto_itself) {
  const Scratch scratch;
  const auto reference = make_backend("reference");
  generate_golden(scratch / "a.h5", "merge/empty_parts/*");
  const auto before = CaseReader(scratch / "a.h5").names();
  const auto results = run_cases(scratch / "a.h5", scratch / "a.h5", *reference);
  BOOST_TEST(count_of(results, Status::passed) == before.size());
  BOOST_TEST((CaseReader(scratch / "a.h5").names() == before));
}

BOOST_AUTO_TEST_CASE(cases_without_elements_are_skipped) {
  const Scratch scratch;
  const auto reference = make_backend("reference");
  generate_golden(scratch / "a.h5", "merge/parts/no_rows_similar_f32");
  const auto results = check_golden(scratch / "a.h5", *reference);
  BOOST_REQUIRE(results.size() == 1u);
  BOOST_TEST((results[0].status == Status::skipped));
  BOOST_TEST(!count(results).ok());
}

BOOST_AUTO_TEST_SUITE_END()
