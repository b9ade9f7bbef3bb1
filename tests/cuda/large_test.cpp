// Tensors with more than 2^31 elements: what lies past the boundary is as right as what lies before it. Sampled rows
// are held against the reference on the few tokens that they depend on.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "calls.hpp"
#include "gpu_support.hpp"
#include "internal/elements.hpp"

using namespace dsalt;
using namespace gpu_test;

namespace {

constexpr std::int64_t width = 64, boundary = (std::int64_t{1} << 31) / width, rows = boundary + 100, window = 16;
constexpr std::int64_t period = 65521;  // elements of the block that a tensor repeats: a prime, so rows differ
constexpr std::size_t gib = std::size_t{1} << 30;
/// At the start, at 2^30 and 2^31 elements (2^31 and 2^32 bytes), and at the end.
constexpr std::int64_t sampled[] = {0,
                                    5,
                                    boundary / 2 - 1,
                                    boundary / 2,
                                    boundary - 17,
                                    boundary - 1,
                                    boundary,
                                    boundary + 1,
                                    boundary + 50,
                                    rows - 17,
                                    rows - 1};

/// A large bfloat16 tensor whose elements are known: a block that repeats.
class Repeated {
 public:
  Repeated(Backend& backend, const Shape& shape, std::uint64_t seed)
      : block_(random_host({period}, DType::bf16, seed)), tensor_(empty(backend, shape, DType::bf16)) {
    constexpr std::int64_t repeats = 1024, piece = period * repeats;
    std::vector<bfloat16> data(static_cast<std::size_t>(piece));
    for (std::int64_t n = 0; n < repeats; ++n)
      std::memcpy(data.data() + n * period, block_.view().data, period * sizeof(bfloat16));
    const std::int64_t size = tensor_.view().size();
    for (std::int64_t at = 0; at < size; at += piece) {
      backend.copy_from_host(tensor_.view().at<bfloat16>(at), data.data(),
                             static_cast<std::size_t>(std::min(piece, size - at)) * sizeof(bfloat16));
      backend.synchronize();
    }
  }
  const TensorView& view() const { return tensor_; }
  operator const TensorView&() const { return tensor_; }
  bfloat16 at(std::int64_t element) const { return *block_.view().at<bfloat16>(element % period); }
  /// Rows [first, first + count) as a host tensor [1,1,count,width].
  Tensor host_rows(std::int64_t first, std::int64_t count) const {
    const Tensor host = Tensor::empty({1, 1, count, width}, DType::bf16);
    for (std::int64_t n = 0; n < count * width; ++n) *host.view().at<bfloat16>(n) = at(first * width + n);
    return host;
  }

 private:
  Tensor block_, tensor_;
};

bool fits(std::size_t bytes) {
  std::size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (free >= bytes + 2 * gib) return true;
  BOOST_TEST_MESSAGE("left out: needs " << bytes / gib << " GiB of device memory, " << free / gib << " are free");
  return false;
}

Tensor result(Backend& backend, const Shape& shape, DType dtype) { return empty(backend, shape, dtype); }

/// Row `row` of a large tensor of rows, from the device.
std::vector<double> device_row(Backend& backend, const TensorView& tensor, std::int64_t row) {
  const std::int64_t length = tensor.shape[static_cast<std::size_t>(tensor.rank - 1)];
  TensorView view =
      TensorView::of(tensor.at<std::byte>(row * length * static_cast<std::int64_t>(size_of(tensor.dtype))),
                     tensor.dtype, {length}, tensor.device);
  const Tensor host = on_host(backend, view);
  std::vector<double> values;
  for (std::int64_t n = 0; n < length; ++n) values.push_back(internal::load_double(host, n));
  return values;
}

std::vector<double> host_row(const TensorView& tensor, std::int64_t row) {
  const std::int64_t length = tensor.shape[static_cast<std::size_t>(tensor.rank - 1)];
  std::vector<double> values;
  for (std::int64_t n = 0; n < length; ++n) values.push_back(internal::load_double(tensor, row * length + n));
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(large_tensors)

BOOST_AUTO_TEST_CASE(attention) {
  constexpr std::size_t tensor_bytes = rows * width * sizeof(bfloat16);
  if (!fits(8 * tensor_bytes + 3 * rows * sizeof(float))) return;
  const auto cuda = make_cuda(), reference = make_backend("reference");
  const Shape shape = {1, 1, rows, width};
  const Repeated q(*cuda, shape, 1), k(*cuda, shape, 2), v(*cuda, shape, 3), dout(*cuda, shape, 4);
  const Tensor out = result(*cuda, shape, DType::bf16), lse = result(*cuda, {1, 1, rows}, DType::f32),
               dq = result(*cuda, shape, DType::bf16), dk = result(*cuda, shape, DType::bf16),
               dv = result(*cuda, shape, DType::bf16), windows = result(*cuda, {1, 1, rows}, DType::i32);
  const std::vector<std::int32_t> sizes(static_cast<std::size_t>(rows), window);
  cuda->copy_from_host(windows.view().data, sizes.data(), sizes.size() * sizeof(std::int32_t));
  cuda->synchronize();

  AttentionProblem problem;
  problem.mask = Mask::sparse;
  AttentionInputs in;
  in.q = q;
  in.k = k;
  in.v = v;
  in.window = windows;
  attention_forward(*cuda, problem, in, {out, lse});
  AttentionGradients gradients;
  gradients.dq = dq;
  gradients.dk = dk;
  gradients.dv = dv;
  attention_backward(*cuda, problem, in, {out, lse, dout, {}}, gradients);
  cuda->synchronize();

  for (const std::int64_t row : sampled) {
    // row i depends on the keys of its window, its keys' gradients on the queries whose windows reach it
    const std::int64_t first = std::max<std::int64_t>(row - window, 0);
    const std::int64_t count = std::min(row + window + 1, rows) - first, local = row - first;
    const Tensor small_q = q.host_rows(first, count), small_k = k.host_rows(first, count),
                 small_v = v.host_rows(first, count), small_dout = dout.host_rows(first, count);
    const Tensor small_window = Tensor::empty({1, 1, count}, DType::i32);
    std::fill_n(small_window.view().at<std::int32_t>(0), count, static_cast<std::int32_t>(window));
    const auto small = [&] { return Tensor::empty({1, 1, count, width}, DType::bf16); };
    const Tensor small_out = small(), small_dq = small(), small_dk = small(), small_dv = small(),
                 small_lse = Tensor::empty({1, 1, count}, DType::f32);
    AttentionInputs few;
    few.q = small_q;
    few.k = small_k;
    few.v = small_v;
    few.window = small_window;
    attention_forward(*reference, problem, few, {small_out, small_lse});
    AttentionGradients of_few;
    of_few.dq = small_dq;
    of_few.dk = small_dk;
    of_few.dv = small_dv;
    attention_backward(*reference, problem, few, {small_out, small_lse, small_dout, {}}, of_few);
    const auto compare = [&](const char* what, const TensorView& large, const TensorView& right) {
      BOOST_TEST(difference(device_row(*cuda, large, row), host_row(right, local)) <= allowed(DType::bf16),
                 what << " of row " << row);
    };
    compare("out", out, small_out);
    compare("dq", dq, small_dq);
    // the rows before `first` do not reach this key, and those after it are all there
    compare("dk", dk, small_dk);
    compare("dv", dv, small_dv);
    float device_lse = 0;
    cuda->copy_to_host(&device_lse, lse.view().at<float>(row), sizeof device_lse);
    cuda->synchronize();
    BOOST_TEST(std::fabs(device_lse - *small_lse.view().at<float>(local)) <= 1e-2);
  }
}

BOOST_AUTO_TEST_CASE(elementwise_and_rows) {
  constexpr std::size_t tensor_bytes = rows * width * sizeof(bfloat16);
  if (!fits(3 * tensor_bytes)) return;
  const auto cuda = make_cuda(), cpu = make_backend("cpu");
  const Shape shape = {rows, width};
  const Repeated a(*cuda, shape, 1), b(*cuda, shape, 2);
  const Tensor y = result(*cuda, shape, DType::bf16), gamma = random_host({width}, DType::f32, 3, 0.1, 1),
               device_gamma = on_device(*cuda, gamma), expected = Tensor::empty({1, width}, DType::bf16);
  const auto row_of = [&](const Repeated& tensor, std::int64_t row) {
    const Tensor host = tensor.host_rows(row, 1);
    return Tensor(host.storage(), TensorView::of(host.view().data, DType::bf16, {1, width}));
  };
  const auto compare = [&](const char* what, std::int64_t row) {
    BOOST_TEST(difference(device_row(*cuda, y, row), host_row(expected, 0)) <= allowed(DType::bf16),
               what << ", row " << row);
  };
  swiglu_forward(*cuda, {a, b}, y);
  for (const std::int64_t row : sampled) {
    swiglu_forward(*cpu, {row_of(a, row), row_of(b, row)}, expected);
    compare("swiglu", row);
  }
  rmsnorm_forward(*cuda, {}, {a, device_gamma}, y);
  for (const std::int64_t row : sampled) {
    rmsnorm_forward(*cpu, {}, {row_of(a, row), gamma}, expected);
    compare("rmsnorm", row);
  }
  const auto as_heads = [](const TensorView& view, std::int64_t count) {
    return TensorView::of(view.data, DType::bf16, {1, 1, count, width}, view.device);
  };
  RopeInputs in;
  in.x = as_heads(a, rows);
  rope_forward(*cuda, {}, in, as_heads(y, rows));
  for (const std::int64_t row : sampled) {
    const Tensor one = row_of(a, row);
    RopeInputs of_row;
    of_row.x = as_heads(one, 1);
    rope_forward(*cpu, {.position = row}, of_row, as_heads(expected, 1));
    compare("rope", row);
  }
}

BOOST_AUTO_TEST_SUITE_END()
