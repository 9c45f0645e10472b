#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradwire {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Writes one line to standard error: level, time, process id, message. Lines below the level in the
// environment variable GRADWIRE_LOG_LEVEL (debug, info, warning, error, off; default warning) are dropped.
// Abseil's own logging is newer than the Abseil release that the project builds with.
void log_line(LogLevel level, absl::string_view message);
bool log_enabled(LogLevel level);

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_line(level, absl::StrCat(parts...));
}

}  // namespace gradwire
