// Views, storage, element copies and DLPack exchange.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "dsalt/dsalt.hpp"

using namespace dsalt;

namespace {

std::vector<float> iota(std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i);
  return values;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tensor)

BOOST_AUTO_TEST_CASE(views_address_the_right_elements) {
  const auto values = iota(24);
  const TensorView t = TensorView::of(values.data(), {2, 3, 4});
  BOOST_TEST(t.size() == 24);
  BOOST_TEST(t.contiguous());
  BOOST_TEST(*t.select(0, 1).select(0, 2).at<float>(3) == 23);
  BOOST_TEST(*t.narrow(1, 1, 2).at<float>(0) == 4);
  const TensorView swapped = t.transpose(0, 2);
  BOOST_TEST(swapped.shape[0] == 4);
  BOOST_TEST(!swapped.contiguous());
  BOOST_TEST(*swapped.select(0, 3).select(0, 0).at<float>(swapped.strides[2]) == 15);
  BOOST_TEST(to_string(t) == "float32 [2,3,4]");
  BOOST_TEST(to_string(TensorView{}) == "absent");
}

BOOST_AUTO_TEST_CASE(views_refuse_what_is_outside) {
  const auto values = iota(6);
  const TensorView t = TensorView::of(values.data(), {2, 3});
  BOOST_CHECK_THROW(t.select(2, 0), InvalidArgument);
  BOOST_CHECK_THROW(t.select(0, 2), InvalidArgument);
  BOOST_CHECK_THROW(t.narrow(1, 2, 2), InvalidArgument);
  BOOST_CHECK_THROW(t.narrow(1, -1, 1), InvalidArgument);
  BOOST_CHECK_THROW(t.narrow(1, std::numeric_limits<std::int64_t>::max(), 1), InvalidArgument);
  BOOST_CHECK_THROW(TensorView::of(nullptr, DType::f32, {-1}), InvalidArgument);
  BOOST_CHECK_THROW(Tensor::empty({std::int64_t{1} << 40, std::int64_t{1} << 40}, DType::f32), InvalidArgument);
}

BOOST_AUTO_TEST_CASE(scalars_and_empty_tensors) {
  BOOST_TEST(Tensor::zeros({}, DType::f64).view().size() == 1);
  BOOST_TEST(Tensor::zeros({3, 0, 2}, DType::f32).view().size() == 0);
  BOOST_TEST(Tensor::zeros({3, 0, 2}, DType::f32).view().data != nullptr);
  BOOST_TEST(!Tensor{}.present());
}

BOOST_AUTO_TEST_CASE(copies_convert_with_one_rounding) {
  // 1 + 2^-8 + 2^-30: float32 first would give the tie 1 + 2^-8 and then 1; one rounding gives 1 + 2^-7.
  const double value = 1 + 0x1p-8 + 0x1p-30;
  const TensorView source = TensorView::of(&value, {1});
  const Tensor target = Tensor::zeros({1}, DType::bf16);
  copy_elements(source, target);
  BOOST_TEST(to_float(*target.view().at<bfloat16>(0)) == 1 + 0x1p-7f);
}

BOOST_AUTO_TEST_CASE(copies_follow_strides_and_refuse_mismatches) {
  const auto values = iota(6);
  const TensorView t = TensorView::of(values.data(), {2, 3});
  const Tensor swapped = Tensor::zeros({3, 2}, DType::f32);
  copy_elements(t.transpose(0, 1), swapped);
  BOOST_TEST(*swapped.view().at<float>(1) == 3);
  BOOST_TEST(*swapped.view().at<float>(4) == 2);
  BOOST_CHECK_THROW(copy_elements(t, swapped), InvalidArgument);
  BOOST_CHECK_THROW(copy_elements(t, Tensor::zeros({2, 3}, DType::i32)), InvalidArgument);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(dlpack_exchange)

BOOST_AUTO_TEST_CASE(round_trip_shares_memory_and_frees_once) {
  for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32}) {
    Tensor original = Tensor::zeros({2, 3}, dtype);
    const std::weak_ptr<void> storage = original.storage();
    const void* data = original.view().data;
    Tensor back = dlpack::import_tensor(dlpack::export_tensor(original));
    original = Tensor{};
    BOOST_TEST(!storage.expired());
    BOOST_TEST(back.view().data == data);
    BOOST_CHECK(back.view().dtype == dtype);
    Tensor again = dlpack::import_tensor(dlpack::export_versioned(back));
    back = Tensor{};
    BOOST_TEST(again.view().size() == 6);
    again = Tensor{};
    BOOST_TEST(storage.expired());
  }
}

BOOST_AUTO_TEST_CASE(foreign_tensors_with_offset_and_strides) {
  auto values = iota(12);
  std::int64_t shape[] = {2, 2}, strides[] = {6, 2};
  static int released;
  released = 0;
  dlpack::ManagedTensor foreign{};
  foreign.dl_tensor = {values.data(), {dlpack::device_cpu, 0}, 2, {dlpack::code_float, 32, 1}, shape, strides, 4};
  foreign.deleter = [](dlpack::ManagedTensor*) { ++released; };
  {
    const Tensor t = dlpack::import_tensor(&foreign);
    BOOST_TEST(*t.view().select(0, 1).at<float>(2) == 9);  // 1 + 6 + 2
    BOOST_TEST(released == 0);
  }
  BOOST_TEST(released == 1);
}

BOOST_AUTO_TEST_CASE(refusals_leave_ownership_with_the_caller) {
  std::int64_t shape[] = {1};
  static int released;
  released = 0;
  dlpack::ManagedTensor foreign{};
  foreign.deleter = [](dlpack::ManagedTensor*) { ++released; };
  foreign.dl_tensor = {shape, {dlpack::device_cpu, 0}, 1, {dlpack::code_int, 64, 1}, shape, nullptr, 0};
  BOOST_CHECK_THROW(dlpack::import_tensor(&foreign), InvalidArgument);
  foreign.dl_tensor.dtype = {dlpack::code_float, 32, 4};
  BOOST_CHECK_THROW(dlpack::import_tensor(&foreign), InvalidArgument);
  foreign.dl_tensor.dtype = {dlpack::code_float, 32, 1};
  foreign.dl_tensor.device = {10, 0};
  BOOST_CHECK_THROW(dlpack::import_tensor(&foreign), InvalidArgument);
  foreign.dl_tensor.device = {dlpack::device_cpu, 0};
  foreign.dl_tensor.ndim = 9;
  BOOST_CHECK_THROW(dlpack::import_tensor(&foreign), InvalidArgument);
  BOOST_CHECK_THROW(dlpack::import_tensor(static_cast<dlpack::ManagedTensor*>(nullptr)), InvalidArgument);
  BOOST_CHECK_THROW(dlpack::export_tensor(Tensor{}), InvalidArgument);
  dlpack::ManagedTensorVersioned future{};
  future.version = {2, 0};
  BOOST_CHECK_THROW(dlpack::import_tensor(&future), InvalidArgument);
  BOOST_TEST(released == 0);
}

BOOST_AUTO_TEST_SUITE_END()
