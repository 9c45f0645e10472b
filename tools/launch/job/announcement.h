#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/job/outputs.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/rendezvous/types.h"
#include "gradwire/tools/launch/security/job_security.h"
#include "gradwire/tools/running_jobs/job_folder.h"

namespace gradwire::tools {

// Lets other programs of this user on this host, for example tools/inspect, find the running job and prove
// themselves to its workers. Not thread-safe. The job is found until the destruction.
class Announcement {
 public:
  // PermissionDenied or Unavailable if the folder that the user has named in GRADWIRE_RUNTIME_DIR cannot be
  // used. If the usual folders cannot be used, publish() says so, and the job runs all the same.
  static absl::StatusOr<Announcement> create(const RuntimeFolders& folders = folders_of_process());

  // The folder that must not outlive the job, or "".
  std::string folder() const { return folder_ ? folder_->path() : ""; }

  // The workers of a round start, and their store is at `store`. Prints a line, once, if others cannot find
  // the job.
  void publish(const LaunchOptions& options, const std::string& run_id, const rendezvous::Address& store,
               const JobSecurity& security, WorkerOutputs& outputs);

 private:
  Announcement() = default;
  static RuntimeFolders folders_of_process();
  absl::Status write(const LaunchOptions& options, const std::string& run_id,
                     const rendezvous::Address& store, const JobSecurity& security);

  const absl::Time began_ = absl::Now();
  std::optional<JobFolder> folder_;
  // The path of the token that is in no other file. Empty until publish() has written it.
  std::string token_file_;
  // Why others cannot find the job; OK after it was printed.
  absl::Status problem_;
};

}  // namespace gradwire::tools
