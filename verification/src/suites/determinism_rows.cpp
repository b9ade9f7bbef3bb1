// A row's bytes do not depend on its surroundings:
//   batch    a sequence alone, in a batch, in a pack, with other padding behind its keys, with its keys in pages
//   prefill  decode (one query) and chunked prefill against the full forward, with and without a longer cache
#include "suites/determinism_rows.hpp"

#include "suites/determinism.hpp"
#include "suites/gradient_cases.hpp"

namespace dsalt::verification {

BatchPromise::BatchPromise(Operation op, Context& context, Verdict& verdict) : op_(op), verdict_(verdict) {
  context.require_promise(&Reproducibility::batch, "batch", op, Direction::forward);
  if (!flow_of(op).gradients.empty()) backward_ = context.promises(&Reproducibility::batch, op, Direction::backward);
}

void BatchPromise::equal_bits(const std::string& what, const std::string& output, const TensorView& actual,
                              const TensorView& expected) const {
  if (backward_ || !is_gradient(op_, output)) verdict_.equal_bits(what + output, actual, expected);
}

namespace {

void each_sequence_alone(const Case& c, const Batched& batched, std::int64_t sequences, Context& context,
                         Verdict& verdict) {
  const BatchPromise promise(c.op, context, verdict);
  const Tensors together = evaluate(context.backend(), c);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const Tensors alone = evaluate(context.backend(), narrowed(c, batched.inputs, 0, b, 1));
    for (const std::string& output : batched.outputs)
      if (together.contains(output))
        promise.equal_bits("sequence " + std::to_string(b) + " alone: ", output, alone.at(output),
                           narrowed(together.at(output), 0, b, 1));
  }
}

}  // namespace

void RowChecks::add(const std::string& name, std::initializer_list<DType> dtypes, const Run& run, bool quick) {
  for (const DType dtype : dtypes)
    list.push_back({in_dtype(name, dtype), quick,
                    [=](Context& context, Verdict& verdict) { run(name, dtype, context, verdict); }});
}

void RowChecks::add_batch(const std::string& name, const Batched& batched, std::int64_t sequences,
                          const CaseMaker& maker, bool quick) {
  add(
      name, batched.op == Operation::select_landmarks ? wide_dtypes : every_dtype,
      [=](const std::string& full_name, DType dtype, Context& context, Verdict& verdict) {
        each_sequence_alone(make_case(full_name, batched.op, dtype, maker), batched, sequences, context, verdict);
      },
      quick);
}

std::vector<Check> row_determinism_checks() {
  RowChecks checks;
  add_attention_rows(checks);
  add_attention_prefill(checks);
  add_selector_rows(checks);
  add_network_rows(checks);
  return std::move(checks.list);
}

}  // namespace dsalt::verification
