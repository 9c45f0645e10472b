#include "gradwire/tools/inspect/dump/flight_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"

// A file may come from anywhere, so nothing in it is trusted: lines are bounded before they are parsed,
// numbers are checked, and texts lose the characters that a terminal must not get.
namespace gradwire::tools {
namespace {

using nlohmann::json;

constexpr off_t kMaxFile = off_t{256} << 20;
constexpr std::size_t kMaxLine = 8192;
constexpr std::size_t kMaxFiles = 65'536;
// The launcher's --trace has one folder for each round, and in it one for each worker.
constexpr int kMaxFolderDepth = 3;
constexpr int kVersion = 1;
// Names of workers and titles of groups are shorter. Each span of a trace has a copy.
constexpr std::size_t kMaxTitle = 256;
// Times are positive and far below the range of the type, so that differences and sums do not overflow.
constexpr int64_t kMaxTime = int64_t{1} << 61;

std::string text_of(const json& line, const char* key) {
  const auto found = line.find(key);
  const auto* text = found == line.end() ? nullptr : found->get_ptr<const std::string*>();
  if (text == nullptr) return "";
  std::string clean = text->substr(0, FlightFile::kMaxText);
  for (char& c : clean) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return clean;
}

int64_t number_of(const json& line, const char* key, int64_t otherwise = 0) {
  const auto found = line.find(key);
  if (found == line.end() || !found->is_number_integer()) return otherwise;
  // A number beyond int64_t is unsigned, and would wrap around.
  if (found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{INT64_MAX}) return otherwise;
  return found->get<int64_t>();
}

// 0 if it is not a time.
int64_t time_of(const json& line, const char* key) {
  const int64_t time = number_of(line, key);
  return time > 0 && time < kMaxTime ? time : 0;
}

// 0 if it is not an id.
uint64_t id_of(const json& line, const char* key) {
  uint64_t id = 0;
  return absl::SimpleHexAtoi(text_of(line, key), &id) ? id : 0;
}

FlightParent parent_of(const json& line) {
  const std::string kind = text_of(line, "parent");
  if (kind == "trace")
    return {FlightParent::Kind::kTrace, id_of(line, "trace_high"), id_of(line, "trace_low")};
  if (kind != "call" && kind != "pass") return {};
  return {kind == "call" ? FlightParent::Kind::kCall : FlightParent::Kind::kPass,
          id_of(line, "parent_worker"), static_cast<uint64_t>(number_of(line, "parent_number"))};
}

bool read_call(const json& line, bool listed, FlightFile& file) {
  FlightCall call;
  const std::string side = text_of(line, "side");
  call.made = side == "made";
  call.identity = {id_of(line, "caller"), static_cast<uint64_t>(number_of(line, "number"))};
  call.peer = id_of(line, "peer");
  call.name = text_of(line, "name");
  if (call.name.empty()) call.name = absl::StrCat("...", text_of(line, "name_end"));
  call.parent = parent_of(line);
  call.began = time_of(line, listed ? "since" : "began");
  call.started = time_of(line, "started");
  call.ended = time_of(line, "ended");
  call.code = text_of(line, "code");
  call.state = text_of(line, "state");
  call.deadline = time_of(line, "deadline");
  if ((side != "made" && side != "served") || !call.identity || call.peer == 0 || call.began == 0)
    return false;
  file.calls.push_back(std::move(call));
  return true;
}

bool read_pass(const json& line, FlightFile& file) {
  FlightPass pass{.root = id_of(line, "root"),
                  .number = static_cast<uint64_t>(number_of(line, "number")),
                  .parent = parent_of(line),
                  .began = time_of(line, "began"),
                  .ended = time_of(line, "ended"),
                  .code = text_of(line, "code")};
  if (pass.root == 0 || pass.began == 0) return false;
  file.passes.push_back(std::move(pass));
  return true;
}

bool read_collective(const json& line, FlightFile& file) {
  FlightCollective operation{.sequence = number_of(line, "sequence", -1),
                             .operation = text_of(line, "operation"),
                             .state = text_of(line, "state"),
                             .code = text_of(line, "code"),
                             .began = time_of(line, "began"),
                             .ended = time_of(line, "ended")};
  if (operation.operation.empty() || operation.state.empty()) return false;
  file.collectives.push_back(std::move(operation));
  return true;
}

bool read_header(const json& line, FlightFile& file) {
  if (text_of(line, "type") != "flight" || number_of(line, "version") != kVersion) return false;
  const std::string source = text_of(line, "source");
  if (source != "agent" && source != "group") return false;
  file.is_group = source == "group";
  file.title = text_of(line, file.is_group ? "title" : "worker").substr(0, kMaxTitle);
  file.incarnation = id_of(line, "incarnation");
  file.reason = text_of(line, "reason");
  file.crash = text_of(line, "dump") == "crash";
  file.process = number_of(line, "process");
  file.boot = text_of(line, "boot");
  file.wall_ns = time_of(line, "wall_ns");
  file.clock_ns = time_of(line, "clock_ns");
  file.recorded = static_cast<uint64_t>(std::max<int64_t>(0, number_of(line, "recorded")));
  file.capacity = static_cast<uint64_t>(std::max<int64_t>(0, number_of(line, "capacity")));
  return file.is_group || file.incarnation != 0;
}

bool read_line(const json& line, FlightFile& file) {
  const std::string type = text_of(line, "type");
  if (type == "call") return read_call(line, /*listed=*/false, file);
  if (type == "open") return read_call(line, /*listed=*/true, file);
  if (type == "pass") return read_pass(line, file);
  if (type == "collective") return read_collective(line, file);
  if (type == "worker") {
    const uint64_t incarnation = id_of(line, "incarnation");
    if (incarnation == 0) return false;
    file.workers[incarnation] = text_of(line, "name").substr(0, kMaxTitle);
    return true;
  }
  if (type == "end") file.truncated = false;
  // Other types are those of a later version.
  return !type.empty();
}

// Nullopt if the line is not an object of single values.
std::optional<json> parse_line(absl::string_view line) {
  if (line.size() > kMaxLine) return std::nullopt;
  // The callback refuses nested values before they are built.
  bool flat = true;
  const json::parser_callback_t check = [&flat](int depth, json::parse_event_t event, json&) {
    const bool begins =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (begins && depth > 0) flat = false;
    return flat;
  };
  json parsed = json::parse(line.begin(), line.end(), check, /*allow_exceptions=*/false);
  if (!flat || parsed.is_discarded() || !parsed.is_object()) return std::nullopt;
  return parsed;
}

// A call that was open when the file was written is in the list of open calls and in the ring. Merges the
// two: the list has the state, and the ring has what happened.
void merge_calls(std::vector<FlightCall>& calls) {
  const auto key = [](const FlightCall& call) {
    return std::tuple(call.made, call.identity.caller, call.identity.number);
  };
  std::stable_sort(calls.begin(), calls.end(),
                   [&key](const FlightCall& a, const FlightCall& b) { return key(a) < key(b); });
  std::vector<FlightCall> merged;
  for (FlightCall& call : calls) {
    if (merged.empty() || key(merged.back()) != key(call)) {
      merged.push_back(std::move(call));
      continue;
    }
    FlightCall& first = merged.back();
    if (call.state.empty()) std::swap(first, call);
    // Now `call` is from the list, if one of the two is.
    first.state = call.state;
    first.deadline = std::max(first.deadline, call.deadline);
    if (!call.name.empty() && call.name.size() >= first.name.size()) first.name = call.name;
    if (first.started == 0) first.started = call.started;
    if (first.ended == 0) std::tie(first.ended, first.code) = std::pair(call.ended, call.code);
  }
  calls = std::move(merged);
}

// Links are not followed, so a folder is visited once.
absl::Status add_flight_files(const std::string& directory, int depth, std::vector<std::string>& paths) {
  DIR* const folder = ::opendir(directory.c_str());
  if (folder == nullptr) return errno_status(absl::StrCat("cannot read the directory ", directory), errno);
  std::vector<std::string> folders;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string path = absl::StrCat(directory, "/", entry->d_name);
    if (absl::EndsWith(entry->d_name, ".jsonl")) {
      if (paths.size() < kMaxFiles) paths.push_back(path);
    } else if (entry->d_name[0] != '.' && depth < kMaxFolderDepth && folders.size() < kMaxFiles) {
      struct stat info {};
      if (::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) folders.push_back(path);
    }
  }
  ::closedir(folder);
  // A folder of another user, or one that has just been removed, does not hide the records beside it.
  for (const std::string& each : folders) (void)add_flight_files(each, depth + 1, paths);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FlightFile> parse_flight_file(absl::string_view text) {
  FlightFile file;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::optional<json> parsed = parse_line(line);
    if (first) {
      first = false;
      if (parsed && read_header(*parsed, file)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("not a flight record: the first line is not a header of version ", kVersion));
    }
    if (!parsed || !read_line(*parsed, file)) ++file.bad_lines;
  }
  if (first) return absl::InvalidArgumentError("not a flight record: the file is empty");
  merge_calls(file.calls);
  if (!file.is_group) file.workers[file.incarnation] = file.title;
  return file;
}

absl::StatusOr<FlightFile> read_flight_file(const std::string& path) {
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return errno_status(absl::StrCat("cannot open ", path), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  if (info.st_size > kMaxFile)
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than 256 MiB"));
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  text.resize(have);
  absl::StatusOr<FlightFile> file = parse_flight_file(text);
  if (!file.ok()) return with_context(file.status(), path);
  file->path = path;
  return file;
}

absl::StatusOr<std::vector<std::string>> find_flight_files(const std::string& directory) {
  std::vector<std::string> paths;
  GRADWIRE_RETURN_IF_ERROR(add_flight_files(directory, /*depth=*/0, paths));
  std::sort(paths.begin(), paths.end());
  return paths;
}

namespace {

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

}  // namespace

std::vector<FlightFile> read_flight_paths(const std::vector<std::string>& paths, std::string& errors) {
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    if (!is_directory(path)) {
      names.push_back(path);
      continue;
    }
    absl::StatusOr<std::vector<std::string>> found = find_flight_files(path);
    if (!found.ok()) absl::StrAppend(&errors, found.status().message(), "\n");
    if (found.ok()) names.insert(names.end(), found->begin(), found->end());
  }
  std::vector<FlightFile> files;
  for (const std::string& name : names) {
    absl::StatusOr<FlightFile> file = read_flight_file(name);
    if (file.ok()) {
      files.push_back(*std::move(file));
    } else {
      absl::StrAppend(&errors, file.status().message(), "\n");
    }
  }
  return files;
}

}  // namespace gradwire::tools
