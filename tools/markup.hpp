// Text that stands in HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace dsalt::tools {

/// Escapes markup; bytes beyond ASCII are left as they are, control characters are dropped.
std::string escaped(std::string_view text);

}  // namespace dsalt::tools
