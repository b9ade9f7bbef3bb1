#include "dsalt/errors.hpp"

namespace dsalt {

// Out of line, so that each type has one home for its run-time type information across shared objects.
Error::~Error() = default;
InvalidArgument::~InvalidArgument() = default;
Unsupported::~Unsupported() = default;
BackendUnavailable::~BackendUnavailable() = default;
IoError::~IoError() = default;
DeviceError::~DeviceError() = default;

}  // namespace dsalt
