#include "gradwire/tools/launch/trace/job_trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/tools/inspect/dump/flight_file.h"
#include "gradwire/tools/inspect/trace/flight_trace.h"
#include "gradwire/tools/inspect/trace/write_trace.h"

namespace gradwire::tools {
namespace {

namespace fs = std::filesystem;

// In a folder of another user, or one to which all may write, others could have put links in place of the
// files.
absl::Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (!error && ::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    error = std::error_code(errno, std::generic_category());
  const Descriptor folder(error ? -1 : ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!error && (!folder.valid() || ::fstat(folder.get(), &info) != 0))
    error = std::error_code(errno, std::generic_category());
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot create the folder ", path, " for --trace: ", error.message()));
  }
  if (info.st_uid == ::geteuid() && (info.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the folder ", path,
                   " for --trace belongs to another user, or all users may write to it; "
                   "choose another one"));
}

}  // namespace

absl::Status JobTrace::prepare() {
  if (!enabled()) return absl::OkStatus();
  std::error_code error;
  const fs::path absolute = fs::absolute(options_.directory, error);
  if (!error) options_.directory = absolute.lexically_normal().string();
  while (options_.directory.size() > 1 && options_.directory.back() == '/') options_.directory.pop_back();
  return make_folder(options_.directory);
}

absl::Status JobTrace::add_worker(int64_t round, const WorkerPlace& place, Variables& variables) {
  if (!enabled()) return absl::OkStatus();
  const std::string parent = absl::StrCat(options_.directory, "/round_", round);
  const std::string folder = absl::StrCat(parent, "/rank_", place.rank);
  GRADWIRE_RETURN_IF_ERROR(make_folder(parent));
  GRADWIRE_RETURN_IF_ERROR(make_folder(folder));
  // Only what a worker writes there is removed.
  std::error_code ignored;
  for (auto entry = fs::directory_iterator(folder, ignored); !ignored && entry != fs::directory_iterator();
       entry.increment(ignored)) {
    std::error_code kept;
    if (entry->path().extension() == ".jsonl" && entry->is_regular_file(kept))
      fs::remove(entry->path(), kept);
  }
  workers_.push_back({round, place.rank, folder});
  node_ = place.group_rank;
  nodes_ = place.group_world_size;
  variables.emplace_back("GRADWIRE_TRACE_DIR", folder);
  if (options_.records > 0) variables.emplace_back("GRADWIRE_TRACE_RECORDS", absl::StrCat(options_.records));
  return absl::OkStatus();
}

// 1. Read the files of all workers.
// 2. Note the workers without any: they had no agent and no group, or were killed by SIGKILL.
// 3. Write the trace.
std::vector<std::string> JobTrace::write() const {
  if (!enabled() || workers_.empty()) return {};
  std::vector<std::string> lines;
  std::vector<FlightFile> files;
  std::string errors;
  for (const Added& worker : workers_) {
    std::vector<FlightFile> found = read_flight_paths({worker.folder}, errors);
    if (found.empty()) {
      lines.push_back(absl::StrCat("  rank ", worker.rank, " of round ", worker.round,
                                   " is missing: it left no flight records in ", worker.folder,
                                   "; it had no agent and no process group, or was killed"));
    }
    files.insert(files.end(), std::make_move_iterator(found.begin()), std::make_move_iterator(found.end()));
  }
  for (const absl::string_view error : absl::StrSplit(errors, '\n', absl::SkipEmpty()))
    lines.push_back(absl::StrCat("  ", error));
  const std::string path =
      absl::StrCat(options_.directory, "/trace", nodes_ > 1 ? absl::StrCat("-node", node_) : "", ".json");
  // That of an earlier job. If it is a link, its target stays.
  std::error_code ignored;
  fs::remove(path, ignored);
  const absl::StatusOr<std::vector<std::string>> written =
      inspect::write_trace(inspect::trace_of(files), path);
  if (!written.ok()) return {std::string(written.status().message())};
  lines.insert(lines.begin(), written->begin(), written->end());
  for (const std::string& line : *written) {
    if (line.find("have overwritten them") == std::string::npos) continue;
    lines.push_back("  --trace_records=N keeps more records");
    break;
  }
  return lines;
}

}  // namespace gradwire::tools
