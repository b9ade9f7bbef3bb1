#include "hdf5_types.hpp"

namespace dsalt::verification {
namespace {

struct SmallFloat {
  std::size_t exponent_at, exponent_bits, mantissa_bits, bias;
};
constexpr SmallFloat float16_layout = {10, 5, 10, 15};
constexpr SmallFloat bfloat16_layout = {7, 8, 7, 127};

Hdf5Handle make_small_float(const SmallFloat& layout) {
  Hdf5Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);  // implied leading bit, zero padding
  if (H5Tset_fields(type, 15, layout.exponent_at, layout.exponent_bits, 0, layout.mantissa_bits) < 0 ||
      H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, layout.bias) < 0)
    return {};
  return type;
}

bool is_small_float(hid_t type, const SmallFloat& layout) {
  std::size_t sign = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
  return H5Tget_class(type) == H5T_FLOAT && H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE &&
         H5Tget_precision(type) == 16 && H5Tget_offset(type) == 0 && H5Tget_norm(type) == H5T_NORM_IMPLIED &&
         H5Tget_ebias(type) == layout.bias &&
         H5Tget_fields(type, &sign, &exponent_at, &exponent_bits, &mantissa_at, &mantissa_bits) >= 0 && sign == 15 &&
         exponent_at == layout.exponent_at && exponent_bits == layout.exponent_bits && mantissa_at == 0 &&
         mantissa_bits == layout.mantissa_bits;
}

}  // namespace

Hdf5Handle make_file_type(DType dtype) {
  switch (dtype) {
    case DType::f64: return {H5Tcopy(H5T_IEEE_F64LE), H5Tclose};
    case DType::f32: return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::i32: return {H5Tcopy(H5T_STD_I32LE), H5Tclose};
    case DType::f16: return make_small_float(float16_layout);
    case DType::bf16: return make_small_float(bfloat16_layout);
  }
  return {};
}

std::optional<StoredType> stored_type(hid_t type) {
  if (H5Tequal(type, H5T_IEEE_F64LE) > 0) return StoredType{DType::f64};
  if (H5Tequal(type, H5T_IEEE_F32LE) > 0) return StoredType{DType::f32};
  if (H5Tequal(type, H5T_STD_I32LE) > 0) return StoredType{DType::i32};
  if (is_small_float(type, float16_layout)) return StoredType{DType::f16};
  if (is_small_float(type, bfloat16_layout)) return StoredType{DType::bf16};
  if (H5Tequal(type, H5T_IEEE_F64BE) > 0) return StoredType{DType::f64, true};
  if (H5Tequal(type, H5T_IEEE_F32BE) > 0) return StoredType{DType::f32, true};
  if (H5Tequal(type, H5T_STD_I32BE) > 0) return StoredType{DType::i32, true};
  return std::nullopt;
}

std::string describe_type(hid_t type) {
  const std::string bits = std::to_string(8 * H5Tget_size(type)) + "-bit ";
  switch (H5Tget_class(type)) {
    case H5T_INTEGER: return bits + (H5Tget_sign(type) == H5T_SGN_NONE ? "unsigned integer" : "integer");
    case H5T_FLOAT: {
      std::size_t sign = 0, exponent_at = 0, exponent_bits = 0, mantissa_at = 0, mantissa_bits = 0;
      if (H5Tget_fields(type, &sign, &exponent_at, &exponent_bits, &mantissa_at, &mantissa_bits) < 0)
        return bits + "float";
      return bits + "float with " + std::to_string(exponent_bits) + " exponent and " + std::to_string(mantissa_bits) +
             " mantissa bits" + (H5Tget_order(type) == H5T_ORDER_BE ? ", big-endian" : "");
    }
    case H5T_STRING: return "string";
    case H5T_BITFIELD: return "bit field";
    case H5T_OPAQUE: return "opaque type";
    case H5T_COMPOUND: return "compound type";
    case H5T_REFERENCE: return "reference";
    case H5T_ENUM: return "enumeration";
    case H5T_VLEN: return "variable-length type";
    case H5T_ARRAY: return "array type";
    default: return "unknown type";
  }
}

}  // namespace dsalt::verification
