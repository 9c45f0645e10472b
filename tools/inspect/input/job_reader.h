#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/rpc/inspect/job_directory.h"
#include "gradwire/rpc/inspect/observer.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/tools/inspect/analysis/job_view.h"

namespace gradwire::inspect {

// Where a job is, and how this process proves that it belongs to it.
struct JobPlace {
  // "host:port", "tcp://host:port", where the host may be a multicast group, "file:///path", or "env://",
  // which takes MASTER_ADDR and MASTER_PORT.
  std::string store = "env://";
  // The id of a job of this user's launchers, or the process id of its launcher, for choose_job()
  // (tools/inspect/jobs), which sets `store`. Empty: the only job.
  std::string job;
  std::string name = "inspect";
  SecurityOptions security;
  absl::Duration timeout = absl::Seconds(3);
  uint32_t most = 0;
};

// Reads the state of a job: its workers from the store, and their states from themselves. Not thread-safe.
class JobReader {
 public:
  // Connects to the store. Errors: InvalidArgument for a wrong place; those of the store.
  static absl::StatusOr<std::unique_ptr<JobReader>> open(const JobPlace& place);

  // Reads all workers. If the store does not answer, the workers of the last view are asked, and `warning`
  // says why; it is empty otherwise. Errors: those of the store, while no view exists.
  absl::StatusOr<JobView> read(std::string& warning);
  // The members of the job's group now. `warning` and errors: as above.
  absl::StatusOr<std::vector<proto::WorkerRecord>> members(std::string& warning);
  // As rpc::Observer::ask_each(), with the timeout of the place.
  std::vector<rpc::Observer::Answer> ask(const std::vector<rpc::Observer::Question>& questions) {
    return observer_->ask_each(questions, timeout_);
  }

 private:
  // Reads known_ from the store.
  absl::Status read_directory(std::string& warning);
  JobReader(const JobPlace& place, std::shared_ptr<store::Store> store,
            std::unique_ptr<rpc::Observer> observer);

  const absl::Duration timeout_;
  rpc::JobDirectory directory_;
  const std::unique_ptr<rpc::Observer> observer_;
  std::vector<rpc::JobDirectory::Entry> known_;
  // The processes on this host, by incarnation.
  std::map<uint64_t, int64_t> processes_;
};

}  // namespace gradwire::inspect
