#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire {
class Strand;
}

namespace gradwire::rpc {

class Agent;
class RRefService;
class StreamOrder;
struct TypeOps;

// A value in its owner's table.
struct OwnedValue {
  std::shared_ptr<void> value;
  const TypeOps* type = nullptr;
  // Runs the methods of a serial class one after the other; nullptr for other classes.
  std::shared_ptr<Strand> strand;
  // The order of the owner's device work; nullptr if it has no devices.
  std::shared_ptr<StreamOrder> order;
};

// The calls that this process has sent to a value before it knows whether the value was made. If the creation
// fails, they end with its error. A call leaves when it ends, so that a reference on which many short calls
// are made does not collect them. Thread-safe.
class CallsBeforeCreation {
 public:
  // Ends a call with the error of the creation.
  using End = absl::AnyInvocable<void(const absl::Status&)>;

  // Adds a call that is about to be sent. Returns its number; 0 if the creation has ended.
  uint64_t add();
  // The call was sent, and can be ended with `end`. Calls it now if the creation has failed meanwhile. Has no
  // effect for a call that has left.
  void sent(uint64_t call, End end);
  // The call has ended.
  void remove(uint64_t call);
  // The creation has ended with `status`.
  void created(const absl::Status& status);
  std::size_t size() const;

 private:
  mutable Mutex mutex_;
  std::optional<absl::Status> created_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  // In the order in which they were made. Empty until the call was sent.
  std::map<uint64_t, End> calls_ ABSL_GUARDED_BY(mutex_);
};

// The state that all copies of an RRef in one process share: one fork of the RRef, or one local handle on the
// owner. The destructor notifies the service. It sends nothing on its own thread and does not block.
// Immutable and thread-safe. May outlive the agent.
class RRefHandle {
 public:
  struct State {
    std::weak_ptr<RRefService> service;
    Id rref;
    // Empty on the owner.
    Id fork;
    Worker owner;
    std::string type;
    // Completes when the value exists: at once, except for handles made by remote().
    Future<void> created;
    // Completes when the owner has the fork in its table.
    Future<void> confirmed;
    // nullptr if the value existed when the handle was made.
    std::shared_ptr<CallsBeforeCreation> early_calls = nullptr;
  };
  explicit RRefHandle(State state) : state_(std::move(state)) {}
  ~RRefHandle();
  RRefHandle(const RRefHandle&) = delete;
  RRefHandle& operator=(const RRefHandle&) = delete;

  const Id& rref() const { return state_.rref; }
  const Id& fork() const { return state_.fork; }
  bool is_owner() const { return !state_.fork; }
  const Worker& owner() const { return state_.owner; }
  const std::string& type() const { return state_.type; }
  const Future<void>& created() const { return state_.created; }
  const Future<void>& confirmed() const { return state_.confirmed; }
  const std::shared_ptr<CallsBeforeCreation>& early_calls() const { return state_.early_calls; }
  // nullptr after the agent was destroyed.
  std::shared_ptr<RRefService> service() const { return state_.service.lock(); }
  std::shared_ptr<Agent> agent() const;

 private:
  const State state_;
};

}  // namespace gradwire::rpc
