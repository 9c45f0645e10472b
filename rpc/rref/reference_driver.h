#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/core/extension.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/arrival_order.h"
#include "gradwire/rpc/rref/owned_value.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/rref/references.h"

namespace gradwire::rpc {

class Agent;

// Runs the reference protocol of an agent: it keeps References, and the values and promises that belong to
// it, under one lock. It passes events to References and performs the resulting actions: it sends messages
// (proto/rpc.proto, "References"), completes futures and destroys values. It also serves the messages of
// other workers. It makes no decisions itself. Thread-safe.
class ReferenceDriver : public std::enable_shared_from_this<ReferenceDriver> {
 public:
  struct Tables {
    References references;
    // The values that this worker owns, including those that are still being made.
    HashMap<Id, ValueSlot> values;
    // Fork -> the promise to complete when the owner has confirmed it.
    HashMap<Id, Promise<void>> unconfirmed;
    // Number of waiters in `values`.
    std::size_t waits = 0;

    // All waiters of the slot, in the order of their arrival. It has none afterwards.
    ValueSlot::Waiters take_waiters(ValueSlot& slot);
    // nullptr if the wait has ended.
    ValueSlot::Waiter* find_waiter(const Id& rref, uint64_t number);
    // Also removes the slot, if there is nothing that would remove it later: no value, no waiter, and no
    // reference to the RRef.
    std::optional<ValueSlot::Waiter> take_waiter(const Id& rref, uint64_t number);
  };

  // The agent and the arrival_order outlive it.
  ReferenceDriver(ReferenceHost& agent, ArrivalOrder& arrival_order, const ReferenceBounds& bounds = {});

  // Runs `event` with the lock held, then performs the actions without the lock. After shutdown it does
  // nothing and returns false. `refusal`: the error of forks that their owner will never confirm.
  bool apply(absl::FunctionRef<void(Tables&, References::Actions&)> event,
             const absl::Status& refusal = absl::OkStatus());
  // A handle was destroyed, on any thread. Sends nothing on that thread.
  void release(const Id& rref, const Id& fork);
  // Notifies `owner` that a creation failed, so that it does not wait for the creating request.
  void creation_failed(const Worker& owner, const Id& rref, const Id& fork);

  // Serves a message of the protocol, in the order of arrival. Does not block.
  void serve(const ServiceCall& call);
  void worker_joined(const Worker& worker);
  // A worker is lost, for `reason`. The reason is OK for a worker that is not known here and that another
  // member declares dead.
  void lose(uint64_t incarnation, const absl::Status& reason = absl::OkStatus());
  // This worker knows every member that joined before the lost worker was declared lost (References::fence).
  void death_agreed(uint64_t incarnation);
  // The worker was lost before this worker joined.
  void forget(uint64_t incarnation);
  void link_restored(const Worker& worker);
  // Drops what is remembered for late messages of this worker, if the ArrivalOrder says that no such message
  // can arrive any more.
  void settled(const Worker& worker);
  // Calls waiters back that were taken out of the tables. Call without the lock.
  void call_back(ValueSlot::Waiters waiters, const absl::Status& reason);
  // Ends all waits with `reason`, and destroys all values.
  void shutdown(const absl::Status& reason);

  void count(AgentTables& tables) const;
  // Number of references to values of this worker that the holder, an incarnation, has.
  std::size_t forks_of(uint64_t holder) const;
  // Calls `visit` with the lock held: it must be short, and must not call back.
  void view(absl::FunctionRef<void(const Tables&)> visit) const;
  // The function whose stream this value is; empty if the value is not there, or is not a stream.
  std::string stream_of(const Id& rref) const;
  // Number of messages that have not been answered.
  std::size_t messages_under_way() const { return under_way_.load(); }
  // nullptr while the agent is being destroyed.
  std::shared_ptr<Agent> agent() const { return weak_agent_.lock(); }

 private:
  // The effects of an event. They are taken out of the tables under the lock, and performed without it.
  struct Effects {
    std::vector<ValueSlot> freed;
    ValueSlot::Waiters waiting_for_freed;
    std::vector<Promise<void>> confirmed;
    std::vector<Promise<void>> refused;
    std::vector<ReferenceMessage> messages;
    std::vector<uint64_t> accused;
    std::vector<std::function<void(absl::StatusOr<ServiceReply>)>> answers;
  };
  Effects take_locked(References::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(Effects effects, const absl::Status& refusal);
  // Destroys values on the executor, with this agent as the current one: they are objects of users, whose
  // destructors may make calls.
  template <class Slots>
  void destroy(Slots slots);
  // The asker does not wait any more.
  void drop_fence_of(uint64_t asker);
  void release_in_process(const Id& rref, const Id& fork);
  // Handles a message with these departures of its sender.
  void handle(const ServiceCall& call, const ReferenceMessage& message, const Departures& sent);
  // Sends a message, and repeats it until it is answered or its receiver is lost.
  void send(ReferenceMessage message);
  void answered(const ReferenceMessage& message, const absl::StatusOr<ServiceReply>& reply);

  ReferenceHost& agent_;
  ArrivalOrder& arrival_order_;
  const std::weak_ptr<Agent> weak_agent_;
  const ProcessMark mark_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Tables tables_ ABSL_GUARDED_BY(mutex_);
  // Fences of other workers that cannot be answered yet, by asker.
  struct FenceAsked {
    uint64_t round = 0;
    std::function<void(absl::StatusOr<ServiceReply>)> reply;
  };
  HashMap<uint64_t, FenceAsked> fences_asked_ ABSL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> under_way_{0};
};

}  // namespace gradwire::rpc
