#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gradwire {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// One line on standard error: level, time, process, message. Lines below the environment's GRADWIRE_LOG_LEVEL
// (debug, info, warning, error, off; warning unless set) are dropped. Abseil's own logging came after the
// release the project builds with.
void log_line(LogLevel level, absl::string_view message);
bool log_enabled(LogLevel level);

template <class... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (log_enabled(level)) log_line(level, absl::StrCat(parts...));
}

}  // namespace gradwire
