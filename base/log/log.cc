#include "gradwire/base/log/log.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gradwire/base/log/line_output.h"
#include "gradwire/base/log/log_record.h"
#include "gradwire/base/log/log_settings.h"

namespace gradwire {
namespace {

std::atomic<std::string (*)()> worker_source{nullptr};
thread_local const LogWorkerScope* innermost = nullptr;

}  // namespace

bool log_enabled(LogLevel level) { return level >= log_settings().threshold; }

void log_line(LogSite site, absl::string_view message) {
  const LogSettings& settings = log_settings();
  const std::string worker = log_worker();
  LineOutput::standard_error().write(format_record({.level = site.level,
                                                    .time = absl::Now(),
                                                    .pid = getpid(),
                                                    .rank = settings.rank,
                                                    .worker = worker,
                                                    .file = site.file,
                                                    .source_line = site.line,
                                                    .message = message},
                                                   settings.format));
}

void log_text(LogSite site, absl::string_view text) {
  if (!log_enabled(site.level)) return;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) log_line(site, line);
}

void set_log_worker_source(std::string (*source)()) { worker_source = source; }

std::string log_worker() {
  if (innermost != nullptr) return innermost->worker_;
  std::string (*const source)() = worker_source;
  return source == nullptr ? std::string() : source();
}

LogWorkerScope::LogWorkerScope(std::string worker) : worker_(std::move(worker)), outer_(innermost) {
  innermost = this;
}

LogWorkerScope::~LogWorkerScope() { innermost = outer_; }

}  // namespace gradwire
