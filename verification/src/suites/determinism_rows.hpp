// A row's bytes do not depend on its surroundings: what the checks of all operations share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "suites/suite_cases.hpp"

namespace dsalt::verification {

/// Inputs and outputs whose dimension 0 counts sequences.
struct Batched {
  Operation op;
  std::vector<std::string> inputs, outputs;
};

/// Compares what `batch` is promised for: a backend that adds up gradients in any order may promise it forward only.
class BatchPromise {
 public:
  BatchPromise(Operation op, Context& context, Verdict& verdict);
  void equal_bits(const std::string& what, const std::string& output, const TensorView& actual,
                  const TensorView& expected) const;

 private:
  Operation op_;
  Verdict& verdict_;
  bool backward_ = false;
};

/// Calls back with the case's name and dtype for each dtype.
class RowChecks {
 public:
  using Run = std::function<void(const std::string& name, DType dtype, Context& context, Verdict& verdict)>;
  void add(const std::string& name, std::initializer_list<DType> dtypes, const Run& run, bool quick = true);
  /// Each sequence alone and together with the others.
  void add_batch(const std::string& name, const Batched& batched, std::int64_t sequences, const CaseMaker& maker,
                 bool quick = true);
  std::vector<Check> list;
};

void add_attention_rows(RowChecks& checks);
void add_attention_prefill(RowChecks& checks);
void add_selector_rows(RowChecks& checks);
void add_network_rows(RowChecks& checks);

/// Queries that share a landmark list: many where backends have kernels that gather it for all of them at once.
inline std::int64_t chunk_length(const AttentionSpec& spec) { return spec.d < 64 ? 16 : 64; }

}  // namespace dsalt::verification
