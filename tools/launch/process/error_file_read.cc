#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/text/json_text.h"
#include "gradwire/base/text/utf8.h"
#include "gradwire/tools/launch/process/error_file.h"

namespace gradwire::tools {
namespace {

using nlohmann::json;

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
