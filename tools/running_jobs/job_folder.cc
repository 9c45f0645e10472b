#include "gradwire/tools/running_jobs/job_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/security/private_file.h"
#include "gradwire/security/token/token_file.h"

namespace gradwire::tools {
namespace {

constexpr security::FileKind kJobFile = {.what = "job file",
                                         .option = "GRADWIRE_RUNTIME_DIR",
                                         .rule = security::FileKind::Rule::kSecret,
                                         .most = kMostJobText};
constexpr absl::string_view kPrefix = "job.";
constexpr char kFile[] = "/job";
// A folder without a lock and without a file may be one that its launcher has just made.
constexpr absl::Duration kNew = absl::Minutes(1);

// The paths of the folders of jobs in a folder, in order.
std::vector<std::string> job_folders(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator() && paths.size() < kMostJobs;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), kPrefix)) paths.push_back(entry->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// mkdtemp() adds so many characters to kPrefix.
constexpr std::size_t kRandomBytes = 6;
// The files of a job.
constexpr std::array<absl::string_view, 3> kFiles = {"/token", "/job.next", kFile};

// Whether a JobFolder has made this folder: the user may have others whose names begin like it.
bool is_job_folder(const std::string& path) {
  const std::filesystem::path folder(path);
  std::error_code error;
  if (folder.filename().string().size() != kPrefix.size() + kRandomBytes) return false;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = absl::StrCat("/", entry->path().filename().string());
    if (std::find(kFiles.begin(), kFiles.end(), name) == kFiles.end()) return false;
  }
  return !error;
}

// Never removes something else than the files of a job.
void remove_folder(const std::string& path) {
  for (const absl::string_view file : kFiles) unlink(absl::StrCat(path, file).c_str());
  rmdir(path.c_str());
}

// Whether no process holds the lock of the job in this folder.
bool has_ended(int folder) { return flock(folder, LOCK_SH | LOCK_NB) == 0; }

void remove_ended(const std::string& folder) {
  for (const std::string& path : job_folders(folder)) {
    const absl::StatusOr<Descriptor> opened = open_private_folder(path, /*create=*/false);
    if (!opened.ok() || !has_ended(opened->get()) || !is_job_folder(path)) continue;
    struct stat info {};
    const bool has_file = access((path + kFile).c_str(), F_OK) == 0;
    const bool is_new =
        fstat(opened->get(), &info) == 0 && absl::Now() - absl::TimeFromTimespec(info.st_mtim) < kNew;
    if (has_file || !is_new) remove_folder(path);
  }
}

absl::StatusOr<RunningJob> read_job(const std::string& path) {
  GRADWIRE_ASSIGN_OR_RETURN(const security::CheckedFile file,
                            security::read_checked_file(kJobFile, path + kFile));
  absl::StatusOr<RunningJob> job = parse_running_job(file.content.reveal());
  return job.ok() ? job : with_context(job.status(), path + kFile);
}

}  // namespace

absl::StatusOr<JobFolder> JobFolder::create(const RuntimeFolders& folders) {
  std::vector<std::string> reasons;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  for (const std::string& parent : folders.paths) {
    if (const absl::Status usable = open_private_folder(parent, /*create=*/true).status(); !usable.ok()) {
      code = usable.code();
      reasons.emplace_back(usable.message());
      continue;
    }
    remove_ended(parent);
    std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
    // mkdtemp() makes the folder with the mode 0700.
    if (mkdtemp(path.data()) == nullptr) {
      reasons.emplace_back(errno_status(absl::StrCat("cannot make a folder in ", parent), errno).message());
      continue;
    }
    absl::StatusOr<Descriptor> opened = open_private_folder(path, /*create=*/false);
    // Another process may hold the lock for a moment, to see whether this job has ended.
    int locked = -1;
    while (opened.ok() && (locked = flock(opened->get(), LOCK_EX)) != 0 && errno == EINTR) {
    }
    if (locked == 0) return JobFolder(std::move(path), *std::move(opened));
    reasons.push_back(absl::StrCat("cannot lock the folder ", path));
    rmdir(path.c_str());
  }
  return absl::Status(code, absl::StrJoin(reasons, "; "));
}

JobFolder::JobFolder(JobFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}

JobFolder::~JobFolder() {
  if (!path_.empty()) remove_folder(path_);
}

absl::StatusOr<std::string> JobFolder::add_token(const security::Secret& token) {
  std::string file = path_ + "/token";
  GRADWIRE_RETURN_IF_ERROR(security::create_token_file(file, token));
  return file;
}

absl::Status JobFolder::write(const RunningJob& job) {
  const std::string file = path_ + kFile;
  const std::string next = file + ".next";
  unlink(next.c_str());
  GRADWIRE_RETURN_IF_ERROR(
      security::create_private_file(kJobFile.what, next, security::Secret(to_text(job))));
  if (std::rename(next.c_str(), file.c_str()) == 0) return absl::OkStatus();
  return errno_status(absl::StrCat("cannot write the job file ", file), errno);
}

// It reports no problem for a folder that is missing, or whose job has not begun or has just ended.
RunningJobs find_running_jobs(const RuntimeFolders& folders) {
  RunningJobs found;
  for (const std::string& parent : folders.paths) {
    if (const absl::Status usable = open_private_folder(parent, /*create=*/false).status(); !usable.ok()) {
      if (absl::IsPermissionDenied(usable)) found.problems.emplace_back(usable.message());
      continue;
    }
    for (const std::string& path : job_folders(parent)) {
      const absl::StatusOr<Descriptor> opened = open_private_folder(path, /*create=*/false);
      if (!opened.ok() || has_ended(opened->get())) continue;
      absl::StatusOr<RunningJob> job = read_job(path);
      if (job.ok()) {
        found.jobs.push_back(*std::move(job));
      } else if (!absl::IsNotFound(job.status())) {
        found.problems.emplace_back(job.status().message());
      }
    }
  }
  std::stable_sort(found.jobs.begin(), found.jobs.end(),
                   [](const RunningJob& a, const RunningJob& b) { return a.began < b.began; });
  return found;
}

}  // namespace gradwire::tools
