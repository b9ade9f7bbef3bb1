#include "dsalt/dlpack.hpp"

#include "dsalt/errors.hpp"

namespace dsalt::dlpack {
namespace {

DType dtype_from(const DataType& type) {
  if (type.lanes == 1) {
    if (type.code == code_float && type.bits == 64) return DType::f64;
    if (type.code == code_float && type.bits == 32) return DType::f32;
    if (type.code == code_float && type.bits == 16) return DType::f16;
    if (type.code == code_bfloat && type.bits == 16) return DType::bf16;
    if (type.code == code_int && type.bits == 32) return DType::i32;
  }
  throw InvalidArgument("DLPack dtype: got code " + std::to_string(type.code) + ", " + std::to_string(type.bits) +
                        " bits, " + std::to_string(type.lanes) +
                        " lanes, need float64, float32, float16, bfloat16 or int32 with one lane");
}

DataType dtype_to(DType dtype) {
  switch (dtype) {
    case DType::f64: return {code_float, 64, 1};
    case DType::f32: return {code_float, 32, 1};
    case DType::f16: return {code_float, 16, 1};
    case DType::bf16: return {code_bfloat, 16, 1};
    case DType::i32: return {code_int, 32, 1};
  }
  return {};
}

dsalt::Device device_from(const Device& device) {
  if (device.device_type == device_cpu || device.device_type == device_cuda_host) return {};
  if (device.device_type == device_cuda) return {DeviceType::cuda, device.device_id};
  throw InvalidArgument("DLPack device: got type " + std::to_string(device.device_type) +
                        ", need 1 (cpu), 2 (cuda) or 3 (pinned host memory)");
}

TensorView view_from(const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > max_rank)
    throw InvalidArgument("DLPack ndim: got " + std::to_string(tensor.ndim) + ", need 0 to " +
                          std::to_string(max_rank));
  auto* const data = static_cast<std::byte*>(tensor.data);
  TensorView view = TensorView::of(data == nullptr ? nullptr : data + tensor.byte_offset, dtype_from(tensor.dtype),
                                   std::span<const std::int64_t>(tensor.shape, static_cast<std::size_t>(tensor.ndim)),
                                   device_from(tensor.device));
  if (tensor.strides != nullptr)
    for (int dim = 0; dim < tensor.ndim; ++dim) view.strides[static_cast<std::size_t>(dim)] = tensor.strides[dim];
  return view;
}

template <class Managed>
Tensor import_managed(Managed* managed) {
  if (managed == nullptr) throw InvalidArgument("DLPack tensor: got null, need a managed tensor");
  const TensorView view = view_from(managed->dl_tensor);  // throws before ownership moves
  const auto release = [](Managed* m) {
    if (m->deleter != nullptr) m->deleter(m);
  };
  return {std::shared_ptr<void>(std::shared_ptr<Managed>(managed, release), view.data), view};
}

/// A managed tensor together with what it points to.
template <class Managed>
struct Exported {
  Tensor tensor;
  TensorView view;
  Managed managed{};

  static Managed* make(const Tensor& tensor) {
    if (!tensor.present()) throw InvalidArgument("DLPack export: got an absent tensor, need a tensor");
    auto owner = std::make_unique<Exported>();
    owner->tensor = tensor;
    owner->view = tensor.view();
    TensorView& view = owner->view;
    const bool host = view.device.type == DeviceType::cpu;
    owner->managed.dl_tensor = {view.data,
                                {host ? device_cpu : device_cuda, host ? 0 : view.device.index},
                                view.rank,
                                dtype_to(view.dtype),
                                view.shape.data(),
                                view.strides.data(),
                                0};
    owner->managed.manager_ctx = owner.get();
    owner->managed.deleter = [](Managed* managed) { delete static_cast<Exported*>(managed->manager_ctx); };
    return &owner.release()->managed;
  }
};

}  // namespace

Tensor import_tensor(ManagedTensor* tensor) { return import_managed(tensor); }

Tensor import_tensor(ManagedTensorVersioned* tensor) {
  if (tensor != nullptr && tensor->version.major != 1)
    throw InvalidArgument("DLPack version: got " + std::to_string(tensor->version.major) + "." +
                          std::to_string(tensor->version.minor) + ", need 1.x");
  return import_managed(tensor);
}

ManagedTensor* export_tensor(const Tensor& tensor) { return Exported<ManagedTensor>::make(tensor); }

ManagedTensorVersioned* export_versioned(const Tensor& tensor) {
  ManagedTensorVersioned* managed = Exported<ManagedTensorVersioned>::make(tensor);
  managed->version = {1, 0};
  return managed;
}

}  // namespace dsalt::dlpack
