#pragma once

#include <string>

#include "gradwire/tools/bench/report/report.h"

namespace gradwire::bench {

// Returns a self-contained HTML page: plots of the curves, bars of the ratios, and a table of all figures.
std::string html_page(const Report& report);

}  // namespace gradwire::bench
