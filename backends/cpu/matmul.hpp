// Small dense products on row-major float buffers: the inner loops of cross_entropy and window_sizes.
//
//   dot           C[i,j] += sum_k A[i,k] B[j,k]
//   accumulate    C[i,j] += sum_k A[i,k] B[k,j]      A by two strides, so it may be a transpose
//
// Contract: C never overlaps A or B. The additions that form an element of C depend on k alone, not on m, n or where
// the element lies: a row of the result has the same bits in any batch. Sums are split every few hundred k, so that
// rounding grows slowly with k. There is one table per instruction set, from the same source (matmul_kernels.hpp);
// which one runs is decided once, by asking the processor.
#pragma once

#include <cstdint>

namespace dsalt::internal {

template <class T>
using DotKernel = void(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t a_stride, const T* b,
                       std::int64_t b_stride, T* c, std::int64_t c_stride);
using AccumulateKernel = void(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t a_row,
                              std::int64_t a_column, const float* b, std::int64_t b_stride, float* c,
                              std::int64_t c_stride);

struct Kernels;

struct Matmul {
  const char* name;  // "generic", "avx2", "avx512"
  DotKernel<float>* dot;
  DotKernel<double>* dot_double;
  AccumulateKernel* accumulate;
};

extern const Matmul matmul_generic;
#if defined(DSALT_MATMUL_X86)
extern const Matmul matmul_avx2;    // needs AVX2 and FMA
extern const Matmul matmul_avx512;  // needs AVX-512F
#endif

/// The table for the instruction set of the backend's attention kernels.
const Matmul& matmul_for(const Kernels& kernels);

}  // namespace dsalt::internal
