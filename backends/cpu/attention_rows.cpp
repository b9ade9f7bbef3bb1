// See attention_rows.hpp.
#include "attention_rows.hpp"

#include "internal/elements.hpp"

namespace dsalt::internal {

void Rows::prefetch(std::int64_t head, std::int64_t begin, std::int64_t end) const {
  if (view_.strides[2] != 1) return;
  const std::int64_t bytes = row_bytes(), step = token_bytes();
  for (std::int64_t token = begin, run; token < end; token += run) {
    run = paged() ? std::min(end - token, page_rows_ - token % page_rows_) : end - token;
    const char* row = address(head, token);
    for (std::int64_t n = 0; n < run; ++n, row += step)
      for (std::int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
  }
}

void prefetch_row_values(const TensorView& view, std::int64_t head, std::int64_t begin, std::int64_t end) {
  if (!view.present() || view.strides[1] != 1) return;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t first = (view.shape[0] == 1 ? 0 : head) * view.strides[0];
  const auto values = reinterpret_cast<std::intptr_t>(view.at<char>(0)) + (first + begin) * size;
  for (std::int64_t line = 0; line < (end - begin) * size; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(values + line), 0, 2);
}

const float* Rows::read(std::int64_t head, std::int64_t token, float* buffer) const {
  const std::int64_t n = channels(), start = offset(head, token), step = view_.strides[2];
  const bool contiguous = step == 1 || n <= 1;
  switch (view_.dtype) {
    case DType::f32:
      if (contiguous) return view_.at<float>(start);
      for (std::int64_t c = 0; c < n; ++c) buffer[c] = *view_.at<float>(start + c * step);
      return buffer;
    case DType::bf16:
      if (contiguous)
        kernels_.widen_bf16(view_.at<std::uint16_t>(start), buffer, n);
      else
        for (std::int64_t c = 0; c < n; ++c) buffer[c] = to_float(*view_.at<bfloat16>(start + c * step));
      return buffer;
    case DType::f16:
      if (contiguous)
        kernels_.widen_f16(view_.at<std::uint16_t>(start), buffer, n);
      else
        for (std::int64_t c = 0; c < n; ++c) buffer[c] = to_float(*view_.at<float16>(start + c * step));
      return buffer;
    case DType::f64:
    case DType::i32: break;  // refused by supports()
  }
  return buffer;
}

const float* Rows::read_padded(std::int64_t head, std::int64_t token, float* buffer) const {
  const float* row = read(head, token, buffer);
  const std::int64_t n = channels(), width = padded(n);
  if (row != buffer) {
    if (n == width) return row;
    std::copy(row, row + n, buffer);
  }
  std::fill(buffer + n, buffer + width, 0.0f);
  return buffer;
}

const std::uint16_t* Rows::read_bits(std::int64_t head, std::int64_t token, std::uint16_t* buffer) const {
  const std::int64_t n = channels(), start = offset(head, token), step = view_.strides[2];
  if (step == 1 && n % 2 == 0) return view_.at<std::uint16_t>(start);
  for (std::int64_t c = 0; c < n; ++c) buffer[c] = *view_.at<std::uint16_t>(start + c * step);
  if (n % 2 == 1) buffer[n] = 0;
  return buffer;
}

void Rows::write(std::int64_t head, std::int64_t token, const float* row, float* work) const {
  const std::int64_t n = channels(), start = offset(head, token), step = view_.strides[2];
  const bool contiguous = step == 1 || n <= 1;
  if (view_.dtype == DType::f32) {
    if (contiguous)
      std::copy(row, row + n, view_.at<float>(start));
    else
      for (std::int64_t c = 0; c < n; ++c) *view_.at<float>(start + c * step) = row[c];
    return;
  }
  auto* bits = contiguous ? view_.at<std::uint16_t>(start) : reinterpret_cast<std::uint16_t*>(work);
  (view_.dtype == DType::bf16 ? kernels_.narrow_bf16 : kernels_.narrow_f16)(row, bits, n);
  if (!contiguous)
    for (std::int64_t c = 0; c < n; ++c) *view_.at<std::uint16_t>(start + c * step) = bits[c];
}

}  // namespace dsalt::internal
