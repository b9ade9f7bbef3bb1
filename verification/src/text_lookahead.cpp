// Rows are compared by their bytes: the promise of the causal policy is bit-identity, not closeness.
#include "text_lookahead.hpp"

#include <string>

namespace dsalt::verification {
namespace {

/// Every byte from `from` on becomes another one.
std::string change_bytes(std::string_view text, std::int64_t from) {
  std::string changed(text);
  for (auto i = static_cast<std::size_t>(from); i < changed.size(); ++i)
    changed[i] = static_cast<char>(static_cast<unsigned char>(changed[i]) + 1);
  return changed;
}

/// Rows [begin, end) of [1,H,N,...].
TensorView rows(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  return tensor.view().narrow(2, begin, end - begin);
}

}  // namespace

void check_lookahead(Backend& backend, const TextShape& shape, DType dtype, std::string_view text,
                     SelectionPolicy policy, Verdict& verdict) {
  if (!backend.reproducibility(Operation::attention, Direction::forward).run)
    throw Skip("the backend does not promise equal bytes for equal calls, so other bytes would show nothing");
  const auto n = static_cast<std::int64_t>(text.size());
  const TextActivations base = run_text(backend, shape, dtype, text, policy);

  if (policy == SelectionPolicy::global) {
    const TextActivations changed = run_text(backend, shape, dtype, change_bytes(text, n - 1), policy);
    verdict.require(count_differences(rows(changed.out, 0, n - 1), rows(base.out, 0, n - 1)) > 0,
                    "no earlier row moved with the last byte: the global policy must see the whole text");
    return;
  }

  // the last byte alone, and everything from inside a chunk on, where a list begins that the changed bytes enter
  for (const std::int64_t from : {n - 1, n / 2 + shape.chunk / 3}) {
    const TextActivations changed = run_text(backend, shape, dtype, change_bytes(text, from), policy);
    const std::string before = "rows before byte " + std::to_string(from);
    verdict.equal_bits("out, " + before, rows(changed.out, 0, from), rows(base.out, 0, from));
    verdict.equal_bits("lse, " + before, rows(changed.lse, 0, from), rows(base.lse, 0, from));
    verdict.require(count_differences(rows(changed.out, from, n), rows(base.out, from, n)) > 0,
                    "no row from byte " + std::to_string(from) + " on moved: the text does not reach the output");
  }
}

}  // namespace dsalt::verification
