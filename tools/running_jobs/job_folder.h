#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/secret.h"
#include "gradwire/tools/running_jobs/running_job.h"
#include "gradwire/tools/running_jobs/runtime_folder.h"

namespace gradwire::tools {

// The folder of one running job (mode 0700), in one of RuntimeFolders. It has the files "job" (to_text(),
// mode 0600) and, if no other file has the job's token, "token" (mode 0600).
//
// The launcher holds a lock on the folder. The system releases it when the launcher and its reaper have ended
// in any way, so a folder without a lock is that of a job that has ended.
//
// Not thread-safe. The destructor removes the folder.
class JobFolder {
 public:
  // Makes a folder in the first of `folders` that this user can use, and removes those of jobs that have
  // ended there. PermissionDenied or Unavailable, with the reason for each, if it can use none.
  static absl::StatusOr<JobFolder> create(const RuntimeFolders& folders);

  JobFolder(JobFolder&& other) noexcept;
  JobFolder& operator=(JobFolder&&) = delete;
  ~JobFolder();

  const std::string& path() const { return path_; }
  // Writes the file of the token, and returns its path. Unavailable; AlreadyExists at a second call.
  absl::StatusOr<std::string> add_token(const security::Secret& token);
  // Writes the file of the job, or replaces it as a whole. From the first call on others find the job.
  // Unavailable.
  absl::Status write(const RunningJob& job);

 private:
  JobFolder(std::string path, Descriptor lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  std::string path_;  // Empty if moved from.
  Descriptor lock_;
};

// The jobs of this user whose launchers run on this host.
struct RunningJobs {
  // In the order of their beginning. A job with several launchers on this host is there several times.
  std::vector<RunningJob> jobs;
  // Why a folder, or the file of a job that runs, cannot be used.
  std::vector<std::string> problems;
};

// Reads the folders, and changes nothing in them. Folders and files that another user could have changed are
// not used. At most kMostJobs.
RunningJobs find_running_jobs(const RuntimeFolders& folders);
inline constexpr std::size_t kMostJobs = 256;

}  // namespace gradwire::tools
