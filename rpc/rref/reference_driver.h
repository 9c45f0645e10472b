#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/rref/owned_value.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// Runs the reference protocol of an agent: References and the tables of what it names, under one lock. Hands
// it what happens, and does what follows: sends and serves its messages (proto/rpc.proto, "References"),
// completes futures, destroys values. Decides nothing itself. Thread-safe.
class ReferenceDriver : public std::enable_shared_from_this<ReferenceDriver> {
 public:
  struct Tables {
    References references;
    // The values that are owned here, and those to come.
    absl::flat_hash_map<Id, ValueSlot> values;
    // Fork -> whom to tell when the owner has confirmed it.
    absl::flat_hash_map<Id, Promise<void>> unconfirmed;
  };

  // Both outlive it.
  ReferenceDriver(ReferenceHost& agent, Settlement& settlement);

  // Runs `event` with the lock held, then does what follows without it. False, and nothing, after shutdown.
  // `refusal`: why the owner of a fork will never know it.
  bool tell(absl::FunctionRef<void(Tables&, References::Actions&)> event,
            const absl::Status& refusal = absl::OkStatus());
  // A handle was dropped, on any thread. Sends nothing on that thread.
  void release(const Id& rref, const Id& fork);
  // Tells `owner` that nobody will get a value that it may know nothing of.
  void creation_failed(const Worker& owner, const Id& rref, const Id& fork);

  // A message of the protocol, where it arrived, before anything that arrives later. Does not block.
  void serve(const ServiceCall& call);
  void worker_joined(const Worker& worker);
  // A worker is lost, for `reason`. Without a reason it is a stranger that another member calls dead.
  void lose(uint64_t incarnation, const absl::Status& reason = absl::OkStatus());
  // Everybody who joined before the lost worker was declared lost is known here (References::fence).
  void death_agreed(uint64_t incarnation);
  // Who was lost before this worker joined.
  void forget(uint64_t incarnation);
  void link_restored(const Worker& worker);
  // Maybe nothing that was sent before what is remembered of this worker can arrive any more: asks, and
  // forgets.
  void settled(const Worker& worker);
  // Everything that waits ends with `reason`, all values go.
  void shutdown(const absl::Status& reason);

  void count(AgentTables& tables) const;
  // Messages that have not been answered.
  std::size_t messages_under_way() const { return under_way_.load(); }
  // nullptr while the agent is being destroyed.
  std::shared_ptr<Agent> agent() const { return weak_agent_.lock(); }

 private:
  // What an event leads to, taken out of the tables under the lock, done outside of it.
  struct Effects {
    std::vector<ValueSlot> freed;
    std::vector<Promise<void>> confirmed;
    std::vector<Promise<void>> refused;
    std::vector<ReferenceMessage> messages;
    std::vector<uint64_t> accused;
    std::vector<std::function<void(absl::StatusOr<ServiceReply>)>> answers;
  };
  Effects take_locked(References::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void perform(Effects effects, const absl::Status& refusal);
  void free_values(std::vector<ValueSlot> slots);
  // Values are user objects, whose destructors may call: they run on the executor, within this agent.
  template <class Slots>
  void destroy(Slots slots);
  // Whoever asked does not wait any more.
  void drop_fence_of(uint64_t asker);
  // Sends a message, and again until it is answered or its receiver is lost.
  void send(ReferenceMessage message);
  void answered(const ReferenceMessage& message, const absl::StatusOr<ServiceReply>& reply);

  ReferenceHost& agent_;
  Settlement& settlement_;
  const std::weak_ptr<Agent> weak_agent_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Tables tables_ ABSL_GUARDED_BY(mutex_);
  // Fences that were asked for and cannot be answered yet: by the asker.
  struct FenceAsked {
    uint64_t round = 0;
    std::function<void(absl::StatusOr<ServiceReply>)> reply;
  };
  absl::flat_hash_map<uint64_t, FenceAsked> fences_asked_ ABSL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> under_way_{0};
};

}  // namespace gradwire::rpc
