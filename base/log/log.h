#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/log/log_level.h"

namespace gradwire {

// The level of a line, and the place in the source that writes it. A LogLevel converts to it, and then the
// place is that of the conversion.
struct LogSite {
  // NOLINTNEXTLINE(google-explicit-constructor)
  LogSite(LogLevel at, const char* in = __builtin_FILE(), int line_number = __builtin_LINE())
      : level(at), file(in), line(line_number) {}
  LogLevel level;
  const char* file;
  int line;
};

// Writes one line to standard error: level, time, process id, worker or rank if it is known, message. Control
// characters in the message are escaped, so it is one line in any case. Lines below the level in the
// environment variable GRADWIRE_LOG_LEVEL (debug, info, warning, error, off; default warning) are dropped.
// With GRADWIRE_LOG_FORMAT=json each line is a JSON object (base/log/log_record.h). Thread-safe. Abseil's own
// logging is newer than the Abseil release that the project builds with.
void log_line(LogSite site, absl::string_view message);
bool log_enabled(LogLevel level);

template <class... Parts>
void log(LogSite site, const Parts&... parts) {
  if (log_enabled(site.level)) log_line(site, absl::StrCat(parts...));
}

// Writes each line of `text` as a record of its own.
void log_text(LogSite site, absl::string_view text);

// Sets the function that returns the name of the worker for which the calling thread works; empty if it works
// for none. It must take no lock, because lines are written with locks held. Call it during static
// initialisation.
void set_log_worker_source(std::string (*source)());
// The worker for which the calling thread works: the name of the innermost LogWorkerScope, or else the one
// that this function returns; empty if neither exists.
std::string log_worker();

// While it exists, lines of the calling thread name `worker`. For code that works for a worker before the
// function above knows that worker.
class LogWorkerScope {
 public:
  explicit LogWorkerScope(std::string worker);
  ~LogWorkerScope();
  LogWorkerScope(const LogWorkerScope&) = delete;
  LogWorkerScope& operator=(const LogWorkerScope&) = delete;

 private:
  friend std::string log_worker();

  const std::string worker_;
  const LogWorkerScope* const outer_;
};

}  // namespace gradwire
