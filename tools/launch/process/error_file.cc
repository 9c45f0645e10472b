#include "gradwire/tools/launch/process/error_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

using nlohmann::json;

// Limit of the written message: longer than the part that the launcher shows. The worker's own output has the
// whole text.
constexpr size_t kMaxWrittenBytes = 4096;

std::terminate_handler previous_handler = nullptr;
std::atomic<pid_t> recording_process{0};

void write_text(const std::string& path, const std::string& text) {
  // Write another file first and rename it: the launcher may kill this process at any time, and must not read
  // half a file.
  const std::string partial = absl::StrCat(path, ".", getpid());
  Descriptor file(open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return;
  const bool written = write_all(file.get(), text);
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) unlink(partial.c_str());
}

// Runs in the worker when an exception is not caught, possibly in a forked child that shares the path. Only
// the process that has installed the handler records.
void on_terminate() {
  // Record only once, so that an exception in this function ends the program.
  pid_t self = getpid();
  if (recording_process.compare_exchange_strong(self, 0)) {
    const std::exception_ptr exception = std::current_exception();
    if (exception) write_error_file(status_from_exception(exception));
  }
  if (previous_handler != nullptr) previous_handler();
  std::abort();
}

}  // namespace

void write_error_file(const absl::Status& status) {
  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    json details = {{"timestamp", absl::StrCat(absl::ToUnixSeconds(absl::Now()))},
                    {"status", absl::StatusCodeToString(status.code())}};
    if (const std::string worker = worker_of(status); !worker.empty()) details["worker"] = worker;
    // The status of an exception that is not an Error has no useful code; its type is in the text.
    std::string text(status.message());
    if (status.code() != absl::StatusCode::kUnknown) text = Error(status).what();
    const json file = {{"message", {{"message", text.substr(0, kMaxWrittenBytes)}, {"extraInfo", details}}}};
    write_text(path, file.dump(-1, ' ', false, json::error_handler_t::replace));
  } catch (const std::exception&) {
    // Probably out of memory. The exit status of the program still shows the failure.
  }
}

void record_uncaught_exceptions() {
  recording_process = getpid();
  static const bool installed = [] {
    previous_handler = std::set_terminate(&on_terminate);
    return true;
  }();
  (void)installed;
}

}  // namespace gradwire::tools
