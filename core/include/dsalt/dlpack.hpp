// DLPack import and export, without depending on any framework: the structs below have DLPack's binary layout
// (versions 0.x unversioned and 1.x versioned), so tensors of PyTorch, JAX, CuPy and NumPy pass without a copy.
#pragma once

#include <cstdint>

#include "dsalt/export.hpp"
#include "dsalt/tensor.hpp"

namespace dsalt::dlpack {

enum : std::int32_t { device_cpu = 1, device_cuda = 2, device_cuda_host = 3 };
enum : std::uint8_t { code_int = 0, code_uint = 1, code_float = 2, code_bfloat = 4 };

struct Device {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // elements; null means contiguous row-major
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

inline constexpr std::uint64_t flag_read_only = 1;

struct ManagedTensorVersioned {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags;
  DLTensor dl_tensor;
};

/// Takes ownership: the producer's deleter runs when the last Tensor lets go. On InvalidArgument (unknown dtype, device
/// or version, lanes != 1, rank above max_rank) ownership stays with the caller. The read-only flag of the versioned
/// form is not carried on: such a tensor may be an input only.
DSALT_API Tensor import_tensor(ManagedTensor* tensor);
DSALT_API Tensor import_tensor(ManagedTensorVersioned* tensor);

/// The consumer must call the deleter once; the storage lives until then. InvalidArgument for an absent tensor.
DSALT_API ManagedTensor* export_tensor(const Tensor& tensor);
DSALT_API ManagedTensorVersioned* export_versioned(const Tensor& tensor);

}  // namespace dsalt::dlpack
