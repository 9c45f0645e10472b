#include "gradwire/base/process/process_identity.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/process/host.h"

namespace gradwire {
namespace {

struct Stat {
  bool exists = false;
  bool running = false;
  uint64_t started = 0;
};

// The format is "id (name) state ...". The name may contain any character, so fields are counted from the
// last parenthesis.
Stat read_stat(int64_t id) {
  Stat stat;
  std::FILE* const file = std::fopen(absl::StrCat("/proc/", id, "/stat").c_str(), "re");
  if (file == nullptr) {
    // The system may hide processes of other users in /proc.
    stat.exists = errno != ENOENT || ::kill(static_cast<pid_t>(id), 0) == 0 || errno != ESRCH;
    stat.running = stat.exists;
    return stat;
  }
  std::array<char, 2048> text;
  const std::size_t length = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  const absl::string_view line(text.data(), length);
  // The process ended between the two calls.
  if (line.empty()) return stat;
  stat.exists = true;
  stat.running = true;
  const std::size_t name_end = line.rfind(')');
  if (name_end == absl::string_view::npos || name_end + 2 >= line.size()) return stat;
  const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(name_end + 2), ' ');
  // A zombie has ended; it only waits for its parent to reap it.
  stat.running = fields[0] != "Z" && fields[0] != "X";
  // The start time is field 22 of the line, and `fields` begins with field 3, the state (see proc(5)).
  constexpr std::size_t kStarted = 19;
  if (fields.size() > kStarted) (void)absl::SimpleAtoi(fields[kStarted], &stat.started);
  return stat;
}

std::string read_link(const char* path) {
  std::array<char, 256> link;
  const ssize_t length = ::readlink(path, link.data(), link.size());
  return length <= 0 ? "" : std::string(link.data(), static_cast<std::size_t>(length));
}

std::string own_space() {
  const std::string space = read_link("/proc/self/ns/pid");
  // The mounted /proc may belong to another namespace, in which the ids refer to other processes.
  const bool is_ours = read_link("/proc/self") == absl::StrCat(::getpid());
  return space.empty() || boot_id().empty() || !is_ours ? "" : absl::StrCat(boot_id(), ",", space);
}

}  // namespace

ProcessIdentity this_process() {
  return {.space = own_space(), .id = ::getpid(), .started = read_stat(::getpid()).started};
}

std::string encode(const ProcessIdentity& process) {
  return absl::StrCat(process.space.empty() ? "-" : process.space, " ", process.id, " ", process.started);
}

std::optional<ProcessIdentity> decode_process(absl::string_view text) {
  constexpr std::size_t kMostText = 512;
  if (text.size() > kMostText) return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  ProcessIdentity process;
  if (fields.size() != 3 || fields[0].empty() ||
      !std::all_of(fields[0].begin(), fields[0].end(), [](char c) { return absl::ascii_isgraph(c); }) ||
      !absl::SimpleAtoi(fields[1], &process.id) || !absl::SimpleAtoi(fields[2], &process.started)) {
    return std::nullopt;
  }
  if (fields[0] != "-") process.space = std::string(fields[0]);
  return process;
}

// An id alone is not enough: the system uses ids again. A process has ended if its id is free, if it is a
// zombie, or if the process with this id started at another time. When in doubt (another host or namespace,
// unknown start time) the answer is false, because "ended" makes others take over what the process owned.
bool has_ended(const ProcessIdentity& process) {
  static const std::string* const space = new std::string(own_space());
  if (process.space.empty() || process.space != *space || process.id <= 0) return false;
  const Stat stat = read_stat(process.id);
  return !stat.exists || !stat.running ||
         (stat.started != 0 && process.started != 0 && stat.started != process.started);
}

}  // namespace gradwire
