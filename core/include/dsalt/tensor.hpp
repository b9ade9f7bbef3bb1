// Tensors: a view (pointer, dtype, device, shape, strides) and an owner of storage.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "dsalt/dtype.hpp"
#include "dsalt/export.hpp"

namespace dsalt {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu", "cuda:0".
DSALT_API std::string to_string(Device device);

inline constexpr int max_rank = 6;

/// A strided window onto memory that somebody else owns. Strides count elements, may be 0 (broadcast) or negative, and
/// every operation accepts any strides on its inputs; an output must not overlap itself (InvalidArgument).
/// A default-constructed view is *absent*: that is how optional tensors are left out. A rank-0 view is a scalar.
/// Inputs are never written, although the pointer is not const (as in DLPack).
struct DSALT_API TensorView {
  void* data = nullptr;
  DType dtype = DType::f32;
  Device device{};
  int rank = -1;
  std::array<std::int64_t, max_rank> shape{};
  std::array<std::int64_t, max_rank> strides{};

  bool present() const { return rank >= 0; }
  /// Number of elements: the product of the shape, 1 for a scalar, 0 when absent.
  std::int64_t size() const;
  bool contiguous() const;

  /// Drops dimension `dim` at `index`. Like all view methods: no bounds are exceeded, no memory is touched.
  TensorView select(int dim, std::int64_t index) const;
  /// Keeps `length` entries of dimension `dim` from `start`.
  TensorView narrow(int dim, std::int64_t start, std::int64_t length) const;
  TensorView transpose(int a, int b) const;

  /// Element address by byte arithmetic in 64 bits: T must be the storage type of `dtype`.
  template <class T>
  T* at(std::int64_t offset) const {
    return static_cast<T*>(data) + offset;
  }

  /// Contiguous row-major view of caller-owned memory.
  static TensorView of(void* data, DType dtype, std::span<const std::int64_t> shape, Device device = {});
  static TensorView of(void* data, DType dtype, std::initializer_list<std::int64_t> shape, Device device = {}) {
    return of(data, dtype, std::span<const std::int64_t>(shape.begin(), shape.size()), device);
  }
  static TensorView of(const float* data, std::initializer_list<std::int64_t> shape) {
    return of(const_cast<float*>(data), DType::f32, shape);
  }
  static TensorView of(const double* data, std::initializer_list<std::int64_t> shape) {
    return of(const_cast<double*>(data), DType::f64, shape);
  }
  static TensorView of(const std::int32_t* data, std::initializer_list<std::int64_t> shape) {
    return of(const_cast<std::int32_t*>(data), DType::i32, shape);
  }
};

/// "float32 [2,8,128,64]"; strides are added when the view is not contiguous; "absent" for an absent view.
DSALT_API std::string to_string(const TensorView& view);
/// "[2,8,128,64]".
DSALT_API std::string shape_string(std::span<const std::int64_t> shape);

/// Reference-counted storage with one view onto it.
class DSALT_API Tensor {
 public:
  Tensor() = default;
  Tensor(std::shared_ptr<void> storage, TensorView view) : storage_(std::move(storage)), view_(view) {}

  /// Host memory aligned to 64 bytes (from 4 MiB on in huge pages where the system has some), contiguous
  /// row-major; not initialised.
  static Tensor empty(std::span<const std::int64_t> shape, DType dtype);
  static Tensor empty(std::initializer_list<std::int64_t> shape, DType dtype) {
    return empty(std::span<const std::int64_t>(shape.begin(), shape.size()), dtype);
  }
  /// The same, all bytes zero.
  static Tensor zeros(std::span<const std::int64_t> shape, DType dtype);
  static Tensor zeros(std::initializer_list<std::int64_t> shape, DType dtype) {
    return zeros(std::span<const std::int64_t>(shape.begin(), shape.size()), dtype);
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  bool present() const { return view_.present(); }
  const std::shared_ptr<void>& storage() const { return storage_; }

 private:
  std::shared_ptr<void> storage_;
  TensorView view_;
};

/// Copies host elements between equal shapes, any strides; when the dtypes differ each value is converted with one
/// rounding (int32 only to int32). InvalidArgument on a shape mismatch or a tensor that is not in host memory.
DSALT_API void copy_elements(const TensorView& source, const TensorView& destination);

}  // namespace dsalt
