#include "tensor_map.hpp"

#include <string>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "../context.hpp"
#include "dsalt/errors.hpp"

namespace dsalt::cuda::hopper {
namespace {

/// Found at run time: the module links no driver library.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder(std::string_view operation) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        operation, "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess)
    throw DeviceError(std::string(operation) + ": the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

CUtensorMapDataType element_type(DType dtype) {
  return dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

}  // namespace

bool copyable(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (address % 16 != 0 || view.strides[last] != 1) return false;
  for (std::size_t dim = 0; dim < last; ++dim) {
    if (view.shape[dim] <= 1) continue;
    if (view.strides[dim] < view.shape[last] || view.strides[dim] % 8 != 0 ||
        view.strides[dim] >= std::int64_t{1} << 39)
      return false;
    if (view.shape[dim] >= std::int64_t{1} << 31) return false;
  }
  return true;
}

CUtensorMap make_tensor_map(const TensorView& view, int rows, std::string_view operation) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder(operation);
  const bool packed = view.rank == 3;
  const std::size_t row_dim = packed ? 0 : 2, head_dim = 1;
  const auto size = [&](std::size_t dim) { return static_cast<cuuint64_t>(view.shape[dim]); };
  const auto stride = [&](std::size_t dim) {  // of a dimension with one entry: anything valid
    return view.shape[dim] > 1 ? static_cast<cuuint64_t>(view.strides[dim]) * 2 : 16;
  };
  const cuuint64_t sizes[4] = {size(static_cast<std::size_t>(view.rank - 1)), size(row_dim), size(head_dim),
                               packed ? 1 : size(0)};
  const cuuint64_t strides[3] = {stride(row_dim), stride(head_dim), packed ? 16 : stride(0)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, element_type(view.dtype), 4, view.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw DeviceError(std::string(operation) + ": cuTensorMapEncodeTiled failed with code " + std::to_string(result) +
                      " for " + to_string(view));
  return map;
}

CUtensorMap make_tensor_map(const MatrixView& matrix, int box_rows, std::string_view operation) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder(operation);
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(matrix.columns), static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(matrix.pitch) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, element_type(matrix.dtype), 2, const_cast<void*>(matrix.data), sizes, strides,
                                 box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw DeviceError(std::string(operation) + ": cuTensorMapEncodeTiled failed with code " + std::to_string(result) +
                      " for a matrix of " + std::to_string(matrix.rows) + " x " + std::to_string(matrix.columns));
  return map;
}

}  // namespace dsalt::cuda::hopper
