// peak.hpp with 16-byte vectors, for any processor: a multiply and an add where the baseline has no fused instruction.
#include "peak_kernels.hpp"

namespace dsalt::internal {

const PeakKernel peak_generic = {MultiplyAdd<16, 12>::run, MultiplyAdd<16, 12>::flop_per_round};

}  // namespace dsalt::internal
