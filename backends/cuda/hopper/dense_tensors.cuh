// The tensors of a call, dense or sparse, in layouts that its kernels can read and write.
#pragma once

#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>

#include "../packed_rows.cuh"
#include "tensor_map.hpp"

namespace dsalt::cuda::hopper {

/// Replaces views that are not copyable (tensor_map.hpp) by contiguous copies, which live as long as this object.
class DenseTensors {
 public:
  DenseTensors(const Context& context, const char* operation, std::initializer_list<TensorView*> inputs,
               std::initializer_list<TensorView*> outputs)
      : inputs_(static_cast<std::ptrdiff_t>(inputs.size())) {
    // Outputs are copied too: a kernel does not write rows that belong to no sequence, and they must come back
    // unchanged.
    for (const auto& list : {inputs, outputs})
      for (TensorView* view : list)
        *view = tensors_.emplace_back(context, operation, *view, 8, Fill::now, copyable(*view)).view();
  }
  /// After the kernels: what they wrote goes where it belongs.
  void copy_back() const {
    for (auto tensor = tensors_.begin() + inputs_; tensor != tensors_.end(); ++tensor) tensor->copy_back();
  }

 private:
  std::ptrdiff_t inputs_;
  std::deque<PackedRows> tensors_;
};

/// A gradient that nobody asked for is computed all the same, into memory of this object: the others keep their bits.
class Unwanted {
 public:
  Unwanted(const Context& context, const char* operation, TensorView& gradient, const TensorView& like) {
    if (gradient.present()) return;
    memory_.emplace(context, operation, like.size() * static_cast<std::int64_t>(size_of(like.dtype)));
    gradient = TensorView::of(memory_->data(), like.dtype,
                              std::span(like.shape.data(), static_cast<std::size_t>(like.rank)), like.device);
  }

 private:
  std::optional<Scratch<unsigned char>> memory_;
};

/// Calls `body` with the element type of q as Tag<bf16> or Tag<f16>, and with its head size, 64 or 128, as a constant:
/// these are what the kernels exist for (takes_attention).
template <class Body>
void for_kernel(const TensorView& q, Body&& body) {
  const auto of_type = [&](auto type) {
    if (q.shape[static_cast<std::size_t>(q.rank - 1)] == 64)
      body(type, std::integral_constant<int, 64>{});
    else
      body(type, std::integral_constant<int, 128>{});
  };
  q.dtype == DType::bf16 ? of_type(Tag<bf16>{}) : of_type(Tag<f16>{});
}

}  // namespace dsalt::cuda::hopper
