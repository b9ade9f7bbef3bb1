// Exceptions of the host API. Every message names the argument, what it got and what it needs.
#pragma once

#include <stdexcept>
#include <string>

#include "dsalt/export.hpp"

namespace dsalt {

/// Base of everything libdsalt throws on purpose.
class DSALT_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

/// An argument contradicts the contract (docs/semantics.md): wrong shape, dtype, range or combination.
class DSALT_API InvalidArgument : public Error {
 public:
  using Error::Error;
  ~InvalidArgument() override;
};

/// The call is valid, but this backend does not implement it. There is no hidden fallback.
class DSALT_API Unsupported : public Error {
 public:
  using Error::Error;
  ~Unsupported() override;
};

/// The named backend cannot be used in this process; the message is the reason that `list_backends` shows.
class DSALT_API BackendUnavailable : public Error {
 public:
  using Error::Error;
  ~BackendUnavailable() override;
};

/// A file could not be read or written, or does not hold what its format demands.
class DSALT_API IoError : public Error {
 public:
  using Error::Error;
  ~IoError() override;
};

/// A device reported a failure; the message carries the operation and the device's own words.
class DSALT_API DeviceError : public Error {
 public:
  using Error::Error;
  ~DeviceError() override;
};

}  // namespace dsalt
