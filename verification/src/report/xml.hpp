// Text that may stand in XML and HTML, as content or as a quoted attribute.
#pragma once

#include <string>
#include <string_view>

namespace dsalt::verification {

/// Escapes markup; characters that XML 1.0 cannot hold, and bytes that are not UTF-8, become U+FFFD.
std::string xml_escaped(std::string_view text);

}  // namespace dsalt::verification
