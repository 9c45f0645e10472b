#include "gradwire/base/log.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace gradwire {
namespace {

LogLevel threshold_from_environment() {
  const char* value = std::getenv("GRADWIRE_LOG_LEVEL");
  const absl::string_view level = value == nullptr ? "" : value;
  if (level == "debug") return LogLevel::kDebug;
  if (level == "info") return LogLevel::kInfo;
  if (level == "error") return LogLevel::kError;
  if (level == "off") return LogLevel::kOff;
  return LogLevel::kWarning;
}

}  // namespace

bool log_enabled(LogLevel level) {
  static const LogLevel threshold = threshold_from_environment();
  return level >= threshold;
}

void log_line(LogLevel level, absl::string_view message) {
  constexpr char kLetters[] = "DIWE";
  std::string line = absl::StrCat(absl::string_view(&kLetters[static_cast<int>(level)], 1),
                                  absl::FormatTime(" %H:%M:%E3S ", absl::Now(), absl::LocalTimeZone()),
                                  getpid(), " gradwire: ", message, "\n");
  // A single write keeps the lines of different threads and processes apart.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace gradwire
