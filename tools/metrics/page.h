#pragma once

#include <string>

namespace gradwire::tools {

// docs/metrics.md: a table of all metrics.
std::string metrics_page();

}  // namespace gradwire::tools
