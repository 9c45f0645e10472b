#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/tools/launch/io/loop.h"
#include "gradwire/tools/launch/job/outputs.h"
#include "gradwire/tools/launch/job/rendezvous_stores.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/process/process_reaper.h"
#include "gradwire/tools/launch/process/program.h"
#include "gradwire/tools/launch/process/signals.h"
#include "gradwire/tools/launch/process/supervisor.h"
#include "gradwire/tools/launch/rendezvous/client.h"

namespace gradwire::tools {

// One run of the launcher on this node, from the command line's meaning to the exit code: meet the other
// launchers, and then, as the rendezvous has it, start the workers of a round, watch them, end them, once for
// every round.
//
// One thread calls run(), once; other threads belong to the stores and to the rendezvous.
class LaunchJob {
 public:
  // Takes over the process's signals. Call it while the process has one thread.
  static absl::StatusOr<std::unique_ptr<LaunchJob>> create(LaunchOptions options);

  // The exit code. An error, of whatever code, means that no worker runs; a NotFound, PermissionDenied or
  // InvalidArgument lies in the command line.
  absl::StatusOr<int> run();

 private:
  LaunchJob(LaunchOptions options, ProcessReaper reaper, LaunchSignals signals, EventLoop loop);

  absl::Status prepare();
  // Tries for join_timeout to find the hosts it needs; a signal ends that.
  absl::Status open_meeting();
  absl::Status enter();
  void on_signal(int signal);

  // What the rendezvous wants now.
  void follow(const rendezvous::RendezvousUpdate& update);
  void serve_round(int64_t round);
  void start_round(const rendezvous::RoundInfo& round);
  absl::Status start_workers(const rendezvous::RoundInfo& round);
  void on_failure(const Worker& worker);
  rendezvous::Failure failure_of(const Worker& worker) const;
  // The worker that others have failed because of, as far as this node can tell: the first to end with 0 and
  // without leaving its group; nullptr: none.
  const Worker* who_left() const;
  // All workers of the round have ended, and what they started.
  void finish_round();
  void let_output_through();

  bool over();
  absl::Duration next_wait() const;
  void log_progress();
  absl::StatusOr<int> conclude();

  const LaunchOptions options_;
  const std::string run_id_;
  const std::string host_;
  ProcessReaper reaper_;
  LaunchSignals signals_;
  EventLoop loop_;
  WorkerOutputs outputs_;
  // What the workers are to execute. Of one of several nodes an error counts only once there is a round,
  // which it ends.
  absl::StatusOr<Command> command_;
  std::vector<std::string> environment_;
  std::unique_ptr<RendezvousStores> stores_;
  std::unique_ptr<rendezvous::RendezvousClient> client_;

  rendezvous::RendezvousUpdate update_;
  // The workers of round started_; none when they have ended.
  std::optional<Supervisor> supervisor_;
  int64_t started_ = -1;
  int64_t served_ = -1;
  bool prepared_ = false;     // where output and errors go
  bool not_started_ = false;  // not all of the round's workers could be
  // Of the last round that failed here, the first one first.
  std::vector<rendezvous::Failure> failures_;
  bool succeeded_ = false;  // the last round's workers have all ended with 0

  int interrupted_by_ = 0;
  absl::Time interrupted_at_;
  bool force_kill_ = false;  // a signal has come once more
  // When the launcher goes although others may still need it.
  absl::Time give_up_at_ = absl::InfiniteFuture();
  absl::Time said_at_;
  bool logged_ = false;
};

}  // namespace gradwire::tools
