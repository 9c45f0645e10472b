#include "gradwire/base/log/log_settings.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/log/line_output.h"

namespace gradwire {

std::optional<LogLevel> parse_log_level(absl::string_view text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "info") return LogLevel::kInfo;
  if (text == "warning") return LogLevel::kWarning;
  if (text == "error") return LogLevel::kError;
  if (text == "off") return LogLevel::kOff;
  return std::nullopt;
}

std::optional<LogFormat> parse_log_format(absl::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return std::nullopt;
}

LogSettings LogSettings::read(const std::function<const char*(const char*)>& variable) {
  const auto text_of = [&](const char* name) {
    const char* value = variable(name);
    return absl::string_view(value == nullptr ? "" : value);
  };
  LogSettings settings;
  const auto complain = [&](absl::string_view name, absl::string_view got, absl::string_view expected) {
    absl::StrAppend(&settings.complaint, settings.complaint.empty() ? "" : "; ", name, ": got \"", got,
                    "\", expected one of ", expected);
  };
  if (const absl::string_view text = text_of("GRADWIRE_LOG_LEVEL"); !text.empty()) {
    const std::optional<LogLevel> level = parse_log_level(text);
    if (!level) complain("GRADWIRE_LOG_LEVEL", text, "debug, info, warning, error, off");
    settings.threshold = level.value_or(LogLevel::kWarning);
  }
  if (const absl::string_view text = text_of("GRADWIRE_LOG_FORMAT"); !text.empty()) {
    const std::optional<LogFormat> format = parse_log_format(text);
    if (!format) complain("GRADWIRE_LOG_FORMAT", text, "text, json");
    settings.format = format.value_or(LogFormat::kText);
  }
  int rank = 0;
  if (absl::SimpleAtoi(text_of("RANK"), &rank) && rank >= 0) settings.rank = rank;
  int local_rank = 0;
  settings.first_on_host = !absl::SimpleAtoi(text_of("LOCAL_RANK"), &local_rank) || local_rank == 0;
  // A program that reads JSON expects nothing else.
  settings.terminal = settings.format == LogFormat::kText && text_of("TERM") != "dumb";
  return settings;
}

const LogSettings& log_settings() {
  static const LogSettings* const settings = [] {
    auto* read = new LogSettings(LogSettings::read([](const char* name) { return std::getenv(name); }));
    if (!read->complaint.empty()) {
      LineOutput::standard_error().write(format_record({.level = LogLevel::kWarning,
                                                        .time = absl::Now(),
                                                        .pid = getpid(),
                                                        .rank = read->rank,
                                                        .message = read->complaint},
                                                       read->format));
    }
    return read;
  }();
  return *settings;
}

}  // namespace gradwire
