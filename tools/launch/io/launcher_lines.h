#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/log/log_level.h"
#include "gradwire/base/log/log_record.h"

namespace gradwire::tools {

// The launcher's own lines, in the format of this process's log (GRADWIRE_LOG_FORMAT). They are written at
// every level of the log.

// "launch: TEXT", or a JSON object. Control characters in the text are escaped.
std::string launcher_line(absl::string_view text, LogLevel level = LogLevel::kInfo);
// Whole lines, as they are, or a JSON object for each of them.
std::string launcher_lines(absl::string_view lines, LogLevel level);
// A line about a wait: "launch: waiting for host-b (12s)".
std::string launcher_progress(const ProgressState& state, absl::Duration elapsed, bool finished);

}  // namespace gradwire::tools
