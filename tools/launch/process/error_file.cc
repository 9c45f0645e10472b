#include "gradwire/tools/launch/process/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/text/json_text.h"
#include "gradwire/base/text/utf8.h"
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

namespace {

// Large enough for the file of a Python worker, which has the call stack.
constexpr off_t kMaxFile = off_t{1} << 20;
constexpr int kMaxDepth = 16;

// Reads a file that the worker wrote. The worker may have put anything at this path, so check that it is a
// file.
absl::StatusOr<std::string> read_file(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid() && errno == ENOENT) return absl::NotFoundError("no error file");
  struct stat info {};
  if (!fd.valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError("the error file is not a readable regular file");
  }
  if (info.st_size > kMaxFile) return absl::InvalidArgumentError("the error file is larger than 1 MiB");
  std::string text(info.st_size, '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + have, text.size() - have);
    if (n <= 0) break;
    have += n;
  }
  text.resize(have);
  return text;
}

// Returns a string member of an object, or nullptr.
const std::string* find_text(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : found->get_ptr<const std::string*>();
}

}  // namespace

// Characters that a terminal must not get, bytes that are not UTF-8, and runs of spaces become one space. A
// line that is too long is cut after a whole character, with "..." at the end, and has at most `size` bytes.
// The loop stops soon after the limit, so a long text costs no more than a short one.
std::string clean_line(absl::string_view text, size_t size) {
  constexpr absl::string_view kCut = "...";
  std::string line;
  size_t fits = 0;  // Length of the part that stays if the line is cut.
  while (!text.empty()) {
    const Utf8Character next = first_character(text);
    const bool space = !next.valid || is_control(next.code) || next.code == ' ';
    if (!space) absl::StrAppend(&line, text.substr(0, next.size));
    if (space && !line.empty() && line.back() != ' ') line += ' ';
    text.remove_prefix(next.size);
    if (line.size() + kCut.size() <= size) fits = line.size();
    if (line.size() > size + 1) break;
  }
  absl::StripTrailingAsciiWhitespace(&line);
  if (line.size() <= size) return line;
  line.resize(fits);
  absl::StripTrailingAsciiWhitespace(&line);
  return absl::StrCat(line, kCut);
}

absl::StatusOr<ErrorRecord> read_error_file(const std::string& path) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  // A file of 1 MiB can nest half a million levels. No useful file is deep, so the parser stops early.
  bool too_deep = false;
  const auto bound_depth = [&too_deep](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  const json file = json::parse(text, bound_depth, /*allow_exceptions=*/false);
  if (file.is_discarded() || too_deep) return absl::InvalidArgumentError("the error file is not JSON");
  ErrorRecord record;
  const std::string* message = find_text(file, "message");
  if (message == nullptr && file.is_object() && file.contains("message")) {
    const json& inner = file["message"];
    message = find_text(inner, "message");
    if (inner.is_object() && inner.contains("extraInfo")) {
      const std::string* timestamp = find_text(inner["extraInfo"], "timestamp");
      int64_t seconds = 0;
      constexpr int64_t kFarFuture = int64_t{1} << 40;
      if (timestamp != nullptr && absl::SimpleAtoi(*timestamp, &seconds) && seconds > 0 &&
          seconds < kFarFuture) {
        record.time = absl::FromUnixSeconds(seconds);
      }
      record.left_its_group = find_text(inner["extraInfo"], "left_its_group") != nullptr;
    }
  }
  if (message == nullptr) return absl::InvalidArgumentError("the error file has no message");
  record.message = clean_line(*message, kMaxErrorMessage);
  return record;
}

}  // namespace gradwire::tools
