#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/rpc/mesh/group_call.h"

namespace gradwire::rpc {

class Agent;
class RRefHandle;

// A tree over the places 0 .. n-1, below a root that is not one of them. Each place knows its children from
// the numbers `n` and `fanout` alone. Every child has a higher number than its parent, so messages that
// follow the tree end, and a subtree is a range of neighbours. If members of one host are neighbours, few
// messages leave a host. Immutable.
class TreePlan {
 public:
  // REQUIRES: fanout >= 1
  TreePlan(std::size_t places, std::size_t fanout) : places_(places), fanout_(fanout) {}

  std::size_t places() const { return places_; }
  // The children of the root, in rising order: at most `fanout`.
  std::vector<std::size_t> children_of_root() const { return heads(0, places_); }
  // The children of a place. REQUIRES: place < places()
  std::vector<std::size_t> children(std::size_t place) const;
  // The end of the subtree that begins at `place`: it has the places place .. end-1. REQUIRES: as above.
  std::size_t subtree_end(std::size_t place) const;

 private:
  // The parts of a range, each of them a subtree: their first places.
  std::vector<std::size_t> heads(std::size_t begin, std::size_t end) const;

  const std::size_t places_;
  const std::size_t fanout_;
};

}  // namespace gradwire::rpc

namespace gradwire::rpc::mesh_internal {

// The number of workers to which each worker of a broadcast sends. All workers must use the same number.
inline constexpr std::size_t kBroadcastFanout = 2;
// The largest number of members of a broadcast. A longer list from another worker is refused.
inline constexpr std::size_t kMaxBroadcastMembers = 16384;

// A member that did not get the value: its incarnation, the code and the text of the error.
using RelayFailure = std::tuple<uint64_t, int64_t, std::string>;

// The outcome of a broadcast for a part of the tree.
struct RelayOutcome {
  // References to the value, each with the incarnation of its owner.
  std::vector<std::pair<uint64_t, std::shared_ptr<RRefHandle>>> delivered;
  std::vector<RelayFailure> failed;
};

// Checks a list of members, incarnations, that another worker has sent, and returns the place of `self`.
// InvalidArgument for a list that is too long, names a member twice, or does not name `self`.
absl::StatusOr<std::size_t> place_in(const std::vector<uint64_t>& members, uint64_t self);

// One worker's part of a broadcast: it sends the value to its children in the tree and collects the outcome
// of their subtrees. If a child fails, it sends the value to the children of that child itself: it has the
// value, and the members below a lost worker must not be lost with it. A member may then get the value twice;
// only one of the two references is kept.
//
// Thread-safe. The calls in flight own it.
class RelayTree : public std::enable_shared_from_this<RelayTree> {
 public:
  // Decodes the answer of a child.
  using Decode = absl::StatusOr<RelayOutcome> (*)(IncomingPayload&);

  // `members`: the incarnations of all members of the broadcast. `call`: the call of the child's part, with
  // its arguments.
  RelayTree(const std::shared_ptr<Agent>& agent, std::vector<uint64_t> members, absl::Time deadline,
            std::unique_ptr<GroupCall> call, Decode decode);

  const TreePlan& plan() const { return plan_; }
  // Sends to these places, which are children of one worker. The future does not fail, except with Cancelled.
  // When it completes, the arguments are not used any more.
  Future<RelayOutcome> start(const std::vector<std::size_t>& children);
  // Ends the calls in flight and begins no others.
  void cancel(const absl::Status& reason);

 private:
  // The state of a member for which this worker is responsible.
  struct Member {
    bool done = false;
    std::shared_ptr<RRefHandle> value;
    absl::Status failure;
  };

  void send(std::size_t place);
  void answered(std::size_t place, absl::StatusOr<RelayOutcome> outcome);
  // Stores what a child reports about its subtree, as far as the child may say that.
  void accept_locked(std::size_t place, RelayOutcome& outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RelayOutcome outcome_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call when `count` sends have ended.
  void finished(std::size_t count);

  const std::weak_ptr<Agent> agent_;
  const std::vector<uint64_t> incarnations_;
  const TreePlan plan_;
  const absl::Time deadline_;
  const std::unique_ptr<GroupCall> call_;
  const Decode decode_;
  // The streams of devices, above all, of the thread that started the broadcast.
  const ExecutionState state_ = ExecutionState::capture();
  const Promise<RelayOutcome> promise_;
  HashMap<uint64_t, std::size_t> places_;

  Mutex mutex_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> ids_ ABSL_GUARDED_BY(mutex_);
  std::size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc::mesh_internal
