#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/tcp_store_server.h"
#include "tools/launch/environment.h"
#include "tools/launch/guardian.h"
#include "tools/launch/loop.h"
#include "tools/launch/nodes.h"
#include "tools/launch/options.h"
#include "tools/launch/outputs.h"
#include "tools/launch/program.h"
#include "tools/launch/signals.h"
#include "tools/launch/supervisor.h"

namespace gradwire::tools {

// One run of the launcher on this node, from the command line's meaning to the exit code: serve the store
// (node 0), meet the other nodes, start the workers, watch them, let their last output through, leave.
//
// One thread calls run(), once; other threads belong to the store and to NodeGroup.
class LaunchJob {
 public:
  // Takes over the process's signals and its orphaned descendants. Call it while the process has one thread.
  static absl::StatusOr<std::unique_ptr<LaunchJob>> create(LaunchOptions options);

  // The exit code. An error, of whatever code, means that no worker runs; a NotFound, PermissionDenied or
  // InvalidArgument lies in the command line.
  absl::StatusOr<int> run();

 private:
  LaunchJob(LaunchOptions options, Guardian guardian, LaunchSignals signals, EventLoop loop);

  absl::Status serve_store();
  // Ends early, with Cancelled, when a signal arrives.
  absl::StatusOr<NodeGroup::Joined> meet_nodes();
  absl::Status start_workers(const NodeGroup::Joined& job);
  absl::Status start_worker(const WorkerPlace& place, const JobAddress& address, const Command& command,
                            int stdin_fd);
  void let_output_through();
  void leave_nodes();
  void on_news();

  const LaunchOptions options_;
  // Released when all groups have ended; until then its end means their end.
  Guardian guardian_;
  LaunchSignals signals_;
  EventLoop loop_;
  WorkerOutputs outputs_;
  Supervisor supervisor_;
  std::unique_ptr<store::TcpStoreServer> server_;
  std::unique_ptr<NodeGroup> nodes_;  // none with one node
  Command command_;
  bool supervising_ = false;
  int interrupted_by_ = 0;  // a signal that came while no workers ran
};

}  // namespace gradwire::tools
