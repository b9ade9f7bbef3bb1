// A histogram of log10(error / bound) as a self-contained SVG element.
#pragma once

#include <string>

#include "report/report.hpp"

namespace dsalt::verification {

/// Bars are shares of the sampled elements; the line marks the bound. Colours are the page's CSS classes.
std::string histogram_svg(const Accuracy& accuracy);

}  // namespace dsalt::verification
