// The words of validation: every check of an argument ends in one InvalidArgument of the same form,
// "name: got X, need Y".
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "dsalt/backend.hpp"

namespace dsalt::internal {

[[noreturn]] void refuse(std::string_view name, const std::string& got, const std::string& need);

/// Numbers in messages: shortest form that reads back exactly.
std::string number(double value);

void require_finite(std::string_view name, double value);
void require_at_least(std::string_view name, double value, double minimum);  // finite and >= minimum
void require_at_least(std::string_view name, std::int64_t value, std::int64_t minimum);
void require_chunk(std::string_view name, std::int64_t value);  // 1 to 2^62: index + offset then fits 64 bits
void require_positive(std::string_view name, double value);     // finite and > 0

/// A tensor argument of the call on `backend`. All checks throw InvalidArgument.
struct Argument {
  std::string_view name;
  const TensorView& view;

  const Argument& present() const;
  const Argument& rank(int rank, std::string_view symbols) const;
  const Argument& shape(std::initializer_list<std::int64_t> shape, std::string_view symbols) const;
  const Argument& same_shape(std::string_view other_name, const TensorView& other) const;
  const Argument& dtype(DType dtype) const;
  const Argument& dtype_in(std::initializer_list<DType> dtypes) const;
  const Argument& floating() const;
  /// Right device, pointer not null unless empty.
  const Argument& on(const Backend& backend) const;
  /// Written by the call: must not overlap itself.
  const Argument& writable() const;
};

bool on_host(const TensorView& view);

/// int32 [S+1], non-decreasing from 0, last <= rows. Values are checked when they are in host memory.
void check_cu_seqlens(const Argument& argument, const Backend& backend, std::int64_t rows);
/// int32 [length], each value in [low, high]; values are checked when they are in host memory.
void check_int32_values(const Argument& argument, const Backend& backend, std::int64_t length, std::string_view symbols,
                        std::int64_t low, std::int64_t high);

/// An optional gradient: absent, or of the shape and floating dtype of the tensor it belongs to.
void check_gradient(const Backend& backend, std::string_view name, const TensorView& gradient, std::string_view of_name,
                    const TensorView& of);

/// Throws Unsupported("<backend>: <operation> <direction>: <reason>") unless `support` says yes.
void require_support(const Backend& backend, Operation operation, Direction direction, const Support& support);
void require_support(const Backend& backend, Operation operation, Direction direction, DType dtype);

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace dsalt::internal
