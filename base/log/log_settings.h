#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/base/log/log_level.h"
#include "gradwire/base/log/log_record.h"

namespace gradwire {

// The settings of the log, which belongs to the whole process, as standard error does.
struct LogSettings {
  LogLevel threshold = LogLevel::kWarning;  // The lowest level that is written.
  LogFormat format = LogFormat::kText;
  std::optional<int> rank;  // The rank of the process in its job.
  // Whether the process reports waits that all workers of a host have in common. False for a worker whose
  // local rank, LOCAL_RANK, is not 0.
  bool first_on_host = true;
  // Whether a moving line may be drawn if standard error is a terminal.
  bool terminal = true;
  std::string complaint;  // Names the variables with unknown values; empty if there are none.

  // Reads GRADWIRE_LOG_LEVEL, GRADWIRE_LOG_FORMAT, RANK, LOCAL_RANK and TERM. `variable` returns the value of
  // a variable, or nullptr.
  static LogSettings read(const std::function<const char*(const char*)>& variable);

  // Progress is reported unless warnings are dropped, too.
  bool progress() const { return threshold <= LogLevel::kWarning; }
};

// Parse the values of the variables: debug, info, warning, error, off; text, json. Return nullopt for other
// texts.
std::optional<LogLevel> parse_log_level(absl::string_view text);
std::optional<LogFormat> parse_log_format(absl::string_view text);

// The settings of this process, read from its environment at the first call.
const LogSettings& log_settings();

}  // namespace gradwire
