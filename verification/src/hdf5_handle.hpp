// The one RAII type for HDF5 identifiers, and how HDF5 reports what went wrong.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>

namespace dsalt::verification {

/// Owns an HDF5 identifier and closes it with the function that its kind needs. An invalid identifier is kept as such:
/// callers test `valid()` and say what they were doing.
class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);

  Hdf5Handle() = default;
  Hdf5Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    if (this != &other) {
      close();
      id_ = std::exchange(other.id_, H5I_INVALID_HID);
      close_ = other.close_;
    }
    return *this;
  }
  ~Hdf5Handle() { close(); }

  bool valid() const { return id_ >= 0; }
  operator hid_t() const { return id_; }
  /// False when HDF5 could not finish its work (an unwritten buffer, for example).
  bool close() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Keeps HDF5 from printing its error stack while in scope; the errors still can be asked for with hdf5_reason().
class QuietHdf5 {
 public:
  QuietHdf5() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietHdf5() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  QuietHdf5(const QuietHdf5&) = delete;
  QuietHdf5& operator=(const QuietHdf5&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// The innermost message of the last failed HDF5 call, in parentheses and after a space; empty when there is none.
inline std::string hdf5_reason() {
  std::string reason;
  const auto innermost = [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
    if (error->desc != nullptr) *static_cast<std::string*>(data) = error->desc;
    return 0;
  };
  // Upward starts at the innermost error, so downward ends with it.
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, innermost, &reason);
  return reason.empty() ? "" : " (" + reason + ")";
}

}  // namespace dsalt::verification
