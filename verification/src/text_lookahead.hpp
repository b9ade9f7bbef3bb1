// Does selection look ahead? Later bytes of the text are changed and the earlier rows of the output are watched.
#pragma once

#include <string_view>

#include "dsalt/verification/text.hpp"
#include "suites/suite.hpp"

namespace dsalt::verification {

/// Runs the forward pipeline on `backend` with the text, with its last byte changed and with its whole last part
/// changed. Causal policy: no earlier row of out and lse may change a bit (and a later one must, so that the check can
/// fail). Global policy: an earlier row must change, which is the leak that the policy is documented to have. Skip when
/// the backend does not promise equal bytes for equal calls.
void check_lookahead(Backend& backend, const TextShape& shape, DType dtype, std::string_view text,
                     SelectionPolicy policy, Verdict& verdict);

}  // namespace dsalt::verification
