// peak.hpp with 32-byte vectors and 16 registers; compiled for AVX2 and FMA.
#include "peak_kernels.hpp"

namespace dsalt::internal {

const PeakKernel peak_avx2 = {MultiplyAdd<32, 12>::run, MultiplyAdd<32, 12>::flop_per_round};

}  // namespace dsalt::internal
