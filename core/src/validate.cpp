#include "validate.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "dsalt/errors.hpp"
#include "internal/elements.hpp"

namespace dsalt::internal {

void refuse(std::string_view name, const std::string& got, const std::string& need) {
  throw InvalidArgument(std::string(name) + ": got " + got + ", need " + need);
}

std::string number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, error == std::errc() ? end : text);
}

void require_finite(std::string_view name, double value) {
  if (!std::isfinite(value)) refuse(name, number(value), "a finite number");
}

void require_at_least(std::string_view name, double value, double minimum) {
  if (!std::isfinite(value) || !(value >= minimum))
    refuse(name, number(value), "a finite number >= " + number(minimum));
}

void require_at_least(std::string_view name, std::int64_t value, std::int64_t minimum) {
  if (value < minimum) refuse(name, std::to_string(value), "at least " + std::to_string(minimum));
}

void require_chunk(std::string_view name, std::int64_t value) {
  constexpr std::int64_t largest = std::int64_t{1} << 62;
  if (value < 1 || value > largest) refuse(name, std::to_string(value), "at least 1 and at most 2^62");
}

void require_positive(std::string_view name, double value) {
  if (!std::isfinite(value) || !(value > 0)) refuse(name, number(value), "a finite number > 0");
}

bool on_host(const TensorView& view) { return view.device.type == DeviceType::cpu; }

const Argument& Argument::present() const {
  if (!view.present()) refuse(name, "nothing", "a tensor");
  return *this;
}

const Argument& Argument::rank(int rank, std::string_view symbols) const {
  present();
  if (view.rank != rank) refuse(name, to_string(view), "rank " + std::to_string(rank) + " " + std::string(symbols));
  return *this;
}

const Argument& Argument::shape(std::initializer_list<std::int64_t> shape, std::string_view symbols) const {
  present();
  const bool same =
      view.rank == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), view.shape.begin());
  if (!same)
    refuse(name, to_string(view),
           "shape " + std::string(symbols) + " = " + shape_string({shape.begin(), shape.size()}));
  return *this;
}

const Argument& Argument::same_shape(std::string_view other_name, const TensorView& other) const {
  present();
  const auto rank = static_cast<std::size_t>(std::max(other.rank, 0));
  if (view.rank != other.rank || !std::equal(other.shape.begin(), other.shape.begin() + rank, view.shape.begin()))
    refuse(name, to_string(view),
           "the shape of " + std::string(other_name) + " " + shape_string({other.shape.data(), rank}));
  return *this;
}

const Argument& Argument::dtype(DType dtype) const { return dtype_in({dtype}); }

const Argument& Argument::dtype_in(std::initializer_list<DType> dtypes) const {
  present();
  if (std::find(dtypes.begin(), dtypes.end(), view.dtype) == dtypes.end()) {
    std::string need;
    for (DType candidate : dtypes) {
      const std::string candidate_name(name_of(candidate));
      if (need.find(candidate_name) == std::string::npos) need += (need.empty() ? "" : " or ") + candidate_name;
    }
    refuse(name, std::string(name_of(view.dtype)), need);
  }
  return *this;
}

const Argument& Argument::floating() const { return dtype_in({DType::f64, DType::f32, DType::bf16, DType::f16}); }

const Argument& Argument::on(const Backend& backend) const {
  present();
  if (view.device != backend.device())
    refuse(name, "a tensor on " + to_string(view.device),
           "one on " + to_string(backend.device()) + ", where backend " + std::string(backend.name()) + " works");
  if (view.data == nullptr && view.size() > 0) refuse(name, "a null pointer", "memory for " + to_string(view));
  return *this;
}

const Argument& Argument::writable() const {
  // Sorted by stride, each dimension must step over everything the smaller ones cover.
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // |stride|, length
  if (view.size() == 0) return *this;
  for (int dim = 0; dim < view.rank; ++dim) {
    const auto n = static_cast<std::size_t>(dim);
    if (view.shape[n] > 1) dims.emplace_back(std::abs(view.strides[n]), view.shape[n]);
  }
  std::sort(dims.begin(), dims.end());
  std::int64_t covered = 0;  // largest offset reached so far
  for (const auto& [stride, length] : dims) {
    if (stride <= covered) refuse(name, to_string(view), "an output that does not overlap itself");
    covered += stride * (length - 1);
  }
  return *this;
}

void check_cu_seqlens(const Argument& argument, const Backend& backend, std::int64_t rows) {
  argument.rank(1, "[S+1]").dtype(DType::i32).on(backend);
  const TensorView& view = argument.view;
  if (view.shape[0] < 1) refuse(argument.name, to_string(view), "at least one entry (S+1 of them)");
  if (!on_host(view)) return;
  std::int64_t previous = load_i32(view, 0);
  if (previous != 0) refuse(argument.name, "first entry " + std::to_string(previous), "0");
  for (std::int64_t s = 1; s < view.shape[0]; ++s) {
    const std::int64_t value = load_i32(view, s);
    if (value < previous)
      refuse(argument.name,
             std::to_string(value) + " after " + std::to_string(previous) + " at entry " + std::to_string(s),
             "entries that do not decrease");
    previous = value;
  }
  if (previous > rows)
    refuse(argument.name, "last entry " + std::to_string(previous),
           "at most the " + std::to_string(rows) + " rows given");
}

void check_int32_values(const Argument& argument, const Backend& backend, std::int64_t length, std::string_view symbols,
                        std::int64_t low, std::int64_t high) {
  argument.shape({length}, symbols).dtype(DType::i32).on(backend);
  if (!on_host(argument.view)) return;
  for (std::int64_t n = 0; n < length; ++n) {
    const std::int64_t value = load_i32(argument.view, n);
    if (value < low || value > high)
      refuse(argument.name, std::to_string(value) + " at entry " + std::to_string(n),
             "values from " + std::to_string(low) + " to " + std::to_string(high));
  }
}

void check_gradient(const Backend& backend, std::string_view name, const TensorView& gradient, std::string_view of_name,
                    const TensorView& of) {
  if (!gradient.present()) return;
  if (!of.present() || !is_floating(of.dtype))
    refuse(name, to_string(gradient), "none: " + std::string(of_name) + " is " + to_string(of));
  Argument{name, gradient}.same_shape(of_name, of).dtype(of.dtype).on(backend).writable();
}

void require_support(const Backend& backend, Operation operation, Direction direction, const Support& support) {
  if (support.supported()) return;
  throw Unsupported(std::string(backend.name()) + ": " + std::string(name_of(operation)) +
                    (direction == Direction::forward ? " forward: " : " backward: ") + support.reason);
}

void require_support(const Backend& backend, Operation operation, Direction direction, DType dtype) {
  require_support(backend, operation, direction, backend.supports(operation, direction, dtype));
}

}  // namespace dsalt::internal
