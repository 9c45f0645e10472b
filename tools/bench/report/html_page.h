#pragma once

#include <string>

#include "gradwire/tools/bench/report/report.h"

namespace gradwire::bench {

// One page that needs nothing else: plots of the curves, ratios as bars, and every figure.
std::string html_page(const Report& report);

}  // namespace gradwire::bench
