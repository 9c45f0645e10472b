#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gradwire::inspect::testing {

// OK if this machine has Chromium without a window (Debian's package chromium-headless-shell). Tests use it
// with GRADWIRE_NEEDS("chromium", find_browser()).
absl::Status find_browser();

// Opens the address, runs the page for `milliseconds` of virtual time, in which timers run at once but
// requests are waited for, and returns the document as HTML. `options`: more options of Chromium.
std::string document_of(const std::string& url, int milliseconds,
                        const std::vector<std::string>& options = {});

}  // namespace gradwire::inspect::testing
