#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "store/store.h"
#include "tools/launch/fd.h"
#include "tools/launch/layout.h"
#include "tools/launch/supervisor.h"

namespace gradwire::tools {

// The launchers of a job of several nodes, which meet in the job's store under the keys "launch/...":
//   node/R  what node R brings, and the run id it knows; written once, so a node rank given twice is noticed
//   failed  the first failure of the job, which every launcher ends its workers for
//   beat/R  a number that grows while the launcher of node R lives; node 0 watches it
//   left/R  node R needs the store no more. Node 0, which hosts it, goes last
//
// States: joining, joined, leaving, done. A thread of its own talks to the store, so the event loop never
// waits for it; news come through event_fd(). The methods are for one other thread. The destructor ends and
// joins the thread within a second or two.
class NodeGroup {
 public:
  struct Options {
    int nnodes = 2;
    int node_rank = 0;
    NodeEntry self;
    std::string run_id;
    absl::Duration join_timeout = absl::Seconds(300);
  };
  // Tries to reach the store for so long.
  using OpenStore = std::function<absl::StatusOr<std::shared_ptr<store::Store>>(absl::Duration timeout)>;

  struct Joined {
    std::vector<NodeEntry> nodes;
    std::string run_id;  // node 0's
  };
  // What has become known; each is there once and then stays.
  struct News {
    // DeadlineExceeded names the nodes that did not come, FailedPrecondition a node rank that was given
    // twice.
    std::optional<absl::StatusOr<Joined>> joined;
    std::optional<Failure> failed;  // anywhere in the job, a node that was lost included
    bool done = false;              // after leave(): the launcher may go
  };

  static absl::StatusOr<std::unique_ptr<NodeGroup>> start(Options options, OpenStore open_store,
                                                          Clock& clock = Clock::system());
  ~NodeGroup();
  NodeGroup(const NodeGroup&) = delete;
  NodeGroup& operator=(const NodeGroup&) = delete;

  // Readable when there are news; news() makes it unreadable.
  int event_fd() const { return event_.get(); }
  News news();

  // Tells the others.
  void publish(const Failure& failure);
  // This node's workers have ended.
  void leave();

 private:
  NodeGroup(Options options, OpenStore open_store, Clock& clock, Fd event);

  void run();
  absl::StatusOr<Joined> join();
  absl::Status open_and_enter(absl::Time deadline);
  absl::StatusOr<Joined> read_nodes();
  // One round of what a member does; at most about a second. False when it is done.
  bool serve_once();
  bool all_left();
  absl::Status check_beats();
  void announce(std::function<void(News&)> change);
  bool stopping();

  const Options options_;
  const OpenStore open_store_;
  Clock& clock_;
  const Fd event_;

  // The thread's own.
  std::shared_ptr<store::Store> store_;
  int64_t beats_ = 0;
  absl::Time next_beat_ = absl::InfinitePast();
  struct Heard {
    std::string beat;
    absl::Time at;
  };
  std::vector<Heard> heard_;
  absl::Time done_by_ = absl::InfiniteFuture();

  Mutex mutex_;
  News news_ ABSL_GUARDED_BY(mutex_);
  std::optional<Failure> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the rest
};

}  // namespace gradwire::tools
