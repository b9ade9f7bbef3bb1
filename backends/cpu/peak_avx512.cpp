// peak.hpp with 64-byte vectors and 32 registers; compiled for AVX-512F.
#include "peak_kernels.hpp"

namespace dsalt::internal {

const PeakKernel peak_avx512 = {MultiplyAdd<64, 24>::run, MultiplyAdd<64, 24>::flop_per_round};

}  // namespace dsalt::internal
