#include "gradwire/tools/launch/job/announcement.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/secret.h"
#include "gradwire/store/init/process_place.h"
#include "gradwire/tools/running_jobs/running_job.h"

namespace gradwire::tools {

RuntimeFolders Announcement::folders_of_process() { return RuntimeFolders::of(&store::environment_variable); }

absl::StatusOr<Announcement> Announcement::create(const RuntimeFolders& folders) {
  Announcement made;
  if (folders.paths.empty()) return made;
  absl::StatusOr<JobFolder> folder = JobFolder::create(folders);
  if (folder.ok()) {
    made.folder_.emplace(*std::move(folder));
  } else if (folders.chosen) {
    return with_context(folder.status(), "cannot use GRADWIRE_RUNTIME_DIR");
  } else {
    made.problem_ = folder.status();
  }
  return made;
}

void Announcement::publish(const LaunchOptions& options, const std::string& run_id,
                           const rendezvous::Address& store, const JobSecurity& security,
                           WorkerOutputs& outputs) {
  if (folder_ && problem_.ok()) problem_ = write(options, run_id, store, security);
  if (problem_.ok()) return;
  outputs.print(absl::StrCat("inspect will not find this job by itself: ", problem_.message()));
  problem_ = absl::OkStatus();
  folder_.reset();
}

absl::Status Announcement::write(const LaunchOptions& options, const std::string& run_id,
                                 const rendezvous::Address& store, const JobSecurity& security) {
  GRADWIRE_ASSIGN_OR_RETURN(JobSecurity::Observer observer, security.observer());
  if (!observer.security.token.empty()) {
    if (token_file_.empty()) {
      GRADWIRE_ASSIGN_OR_RETURN(token_file_, folder_->add_token(observer.security.token.secret()));
    }
    observer.security.token_file = token_file_;
  }
  return folder_->write({.id = run_id,
                         .program = options.program,
                         .launcher = getpid(),
                         .began = began_,
                         .store = absl::StrCat(store.host, ":", store.port),
                         .security = std::move(observer.security),
                         .observer = std::move(observer.name)});
}

}  // namespace gradwire::tools
