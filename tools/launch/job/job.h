#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/tools/launch/arrivals/arrival_watch.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/job/announcement.h"
#include "gradwire/tools/launch/job/outputs.h"
#include "gradwire/tools/launch/job/rendezvous_stores.h"
#include "gradwire/tools/launch/job/wait_output.h"
#include "gradwire/tools/launch/metrics/job_export.h"
#include "gradwire/tools/launch/metrics/job_metrics.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/page/job_page.h"
#include "gradwire/tools/launch/process/process_reaper.h"
#include "gradwire/tools/launch/process/program.h"
#include "gradwire/tools/launch/process/signals.h"
#include "gradwire/tools/launch/process/supervisor.h"
#include "gradwire/tools/launch/rendezvous/client.h"
#include "gradwire/tools/launch/security/job_security.h"
#include "gradwire/tools/launch/trace/job_trace.h"

namespace gradwire::tools {

// One run of the launcher on this node, from the parsed command line to the exit code. It joins the
// rendezvous of the launchers, and then, as the rendezvous decides, starts, watches and ends the workers of
// each round.
//
// One thread calls run(), once. Other threads belong to the stores and to the rendezvous.
class LaunchJob {
 public:
  // Takes over the signals of the process. Must be called while the process has one thread.
  static absl::StatusOr<std::unique_ptr<LaunchJob>> create(LaunchOptions options);

  // Returns the exit code. After any error no worker runs. NotFound, PermissionDenied and InvalidArgument are
  // errors of the command line.
  absl::StatusOr<int> run();

 private:
  // The setup that can fail to start.
  struct Setup {
    JobSecurity security;
    Announcement announcement;
    JobMetrics metrics;
    ProcessReaper reaper;
    LaunchSignals signals;
    FdLoop loop;
  };
  LaunchJob(LaunchOptions options, std::string run_id, Setup setup);

  absl::Status prepare();
  // Opens the stores of the rendezvous. Retries for join_timeout if a host cannot be found; a signal ends
  // that.
  absl::Status open_stores();
  absl::Status enter();
  void on_signal(int signal);

  // Acts on an update of the rendezvous.
  void follow(const rendezvous::RendezvousUpdate& update);
  void prepare_round(int64_t round);
  void start_round(const rendezvous::RoundInfo& round);
  absl::Status start_workers(const rendezvous::RoundInfo& round);
  void on_failure(const Worker& worker);
  // Called when all workers of the round, and the processes that they started, have ended.
  void finish_round();
  void drain_output();

  bool over();
  absl::Duration next_wait() const;
  // A wait for other nodes begins.
  void begin_wait();
  // Shows what the launcher waits for, if it waits.
  void show_wait();
  ProgressState wait_state() const;
  absl::StatusOr<int> conclude();

  const LaunchOptions options_;
  const std::string run_id_;
  const std::string host_;
  const JobSecurity security_;
  Announcement announcement_;
  JobMetrics metrics_;
  JobTrace trace_;
  std::unique_ptr<JobExport> export_;  // Reads metrics_. nullptr without --otlp_endpoint.
  std::unique_ptr<JobPage> page_;      // nullptr without --page.
  ProcessReaper reaper_;
  LaunchSignals signals_;
  FdLoop loop_;
  WorkerOutputs outputs_;
  // The command for the workers. With several nodes an error in it is reported only when a round starts; it
  // then ends the round, so that all nodes learn of it.
  absl::StatusOr<Command> command_;
  std::vector<std::string> environment_;
  std::unique_ptr<RendezvousStores> stores_;
  std::unique_ptr<rendezvous::RendezvousClient> client_;

  rendezvous::RendezvousUpdate update_;
  // The workers of round started_; nullopt after they have ended.
  std::optional<Supervisor> supervisor_;
  int64_t started_ = -1;
  int64_t prepared_round_ = -1;
  bool prepared_ = false;     // Whether the targets of output and errors are set up.
  bool not_started_ = false;  // Whether some workers of the round could not be started.
  // The failures of the last round that failed on this node, in order.
  std::vector<rendezvous::Failure> failures_;
  bool succeeded_ = false;  // Whether all workers of the last round have ended with 0.

  int interrupted_by_ = 0;
  absl::Time interrupted_at_;
  bool force_kill_ = false;  // Whether a second signal has arrived.
  // When the launcher ends even if other launchers may still need it.
  absl::Time give_up_at_ = absl::InfiniteFuture();
  WaitOutput wait_output_{outputs_};
  // Set while the launcher waits for other nodes.
  std::optional<Progress> wait_;
  WaitOutput arrival_output_{outputs_, /*moves=*/false};
  std::unique_ptr<ArrivalWatch> arrivals_;  // Set while the workers of a round run, unless it has one.
};

}  // namespace gradwire::tools
