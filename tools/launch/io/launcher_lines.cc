#include "gradwire/tools/launch/io/launcher_lines.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/base/log/log_settings.h"

namespace gradwire::tools {
namespace {

bool is_json() { return log_settings().format == LogFormat::kJson; }

LogRecord record(LogLevel level, absl::string_view message) {
  return {.level = level,
          .time = absl::Now(),
          .pid = getpid(),
          .rank = log_settings().rank,
          .worker = "launch",
          .message = message};
}

}  // namespace

std::string launcher_line(absl::string_view text, LogLevel level) {
  if (is_json()) return format_record(record(level, text), LogFormat::kJson);
  return absl::StrCat("launch: ", printable(text), "\n");
}

std::string launcher_lines(absl::string_view lines, LogLevel level) {
  if (!is_json()) return std::string(lines);
  std::string text;
  for (absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
    text += format_record(record(level, line), LogFormat::kJson);
  }
  return text;
}

std::string launcher_progress(const ProgressState& state, absl::Duration elapsed, bool finished) {
  if (!is_json()) return launcher_line(progress_text(state, elapsed));
  LogRecord line = record(LogLevel::kInfo, "");
  line.progress = &state;
  line.elapsed = elapsed;
  line.finished = finished;
  return format_record(line, LogFormat::kJson);
}

}  // namespace gradwire::tools
