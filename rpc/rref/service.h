#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/strand.h"
#include "gradwire/codec/encoder.h"
#include "gradwire/codec/id.h"
#include "gradwire/proto/value.pb.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/callee/server_call.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/settlement.h"
#include "gradwire/rpc/rref/handle.h"
#include "gradwire/rpc/rref/reference_host.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// Service numbers of the rpc layer (proto/rpc.proto).
inline constexpr uint32_t kForkAdd = 1;
inline constexpr uint32_t kForkConfirmed = 2;
inline constexpr uint32_t kForkDelete = 3;
inline constexpr uint32_t kPing = 4;
inline constexpr uint32_t kForkRevoke = 5;
inline constexpr uint32_t kFence = 6;
inline constexpr uint32_t kCreationFailed = 7;

// The references of one agent: the values it owns, the forks it holds, and the messages about them
// (proto/rpc.proto, "References"). Decides nothing itself: References does. Thread-safe.
// Handles may outlive it.
class RRefService : public std::enable_shared_from_this<RRefService> {
 public:
  // Both outlive it.
  RRefService(ReferenceHost& agent, Settlement& settlement);

  // ---- The owner's side.

  using Owned = OwnedValue;
  using Found = absl::AnyInvocable<void(absl::StatusOr<Owned>)>;

  // A handle on a value that this agent owns from now on.
  std::shared_ptr<RRefHandle> own(std::shared_ptr<void> value, const TypeOps* type);
  // A request to create `rref` came in from `holder`.
  void begin_value(const Id& rref, const Id& fork, const Worker& holder);
  // The value is there, or will never be.
  void set_value(const Id& rref, absl::StatusOr<Owned> value);
  // Calls `found` with the value when it is there: at once, or later on the thread that makes it. An RRef
  // that nobody here has heard of gets a grace time, since the request that creates it may be on its way on
  // another connection; then NotFound. DeadlineExceeded at the deadline.
  void find(const Id& rref, absl::Time deadline, Found found);

  // ---- The holder's side.

  // The result of a remote() call under way: the handle that its caller gets, and the fork that the request
  // names. On the owner itself that fork only bridges the time until the call has ended; the handle is a
  // local one.
  struct Remote {
    std::shared_ptr<RRefHandle> handle;
    Id fork;
  };
  // `created` completes the handle. FailedPrecondition after shutdown.
  absl::StatusOr<Remote> begin_remote(const Worker& owner, const std::string& type, Promise<void> created);
  // The remote() call has ended, as `created` says. After an error it is unknown whether the owner has the
  // fork: it is deleted all the same.
  void end_remote(const Remote& remote, const absl::Status& created);

  // ---- References in messages.

  // Encodes handles for `receiver`; kept with the call until its answer, since a request that carries a
  // handle to the owner itself relies on the sender's fork.
  std::unique_ptr<Encoder::References> encoder(const Worker& receiver, bool is_answer);
  // The message has left on a connection, which has ended by now or not.
  void sent(const proto::Payload& payload, const Worker& receiver, bool closed);
  // The message never left: takes back the forks that were made for its receiver.
  void undo(const proto::Payload& payload, const Worker& receiver);
  // One handle for each of payload.references. InvalidArgument for what cannot be.
  absl::StatusOr<std::vector<std::shared_ptr<RRefHandle>>> receive(const proto::Payload& payload,
                                                                   const Worker& from);

  // ---- What happens around.

  static bool serves(uint32_t service) {
    return (service >= kForkAdd && service <= kForkDelete) ||
           (service >= kForkRevoke && service <= kCreationFailed);
  }
  // Where the message arrived, before anything that arrives later. Does not block.
  void serve(const ServiceCall& call);
  void worker_joined(const Worker& worker);
  void worker_lost(const Worker& worker, const absl::Status& reason);
  // Everybody who joined before the lost worker was declared lost is known here (References::fence).
  void death_agreed(uint64_t incarnation);
  // Another member says that a worker which is not known here is dead; the log has not told of either.
  void lose_stranger(uint64_t incarnation);
  // Who was lost before this worker joined.
  void forget(uint64_t incarnation);
  void link_restored(const Worker& worker);
  // Maybe nothing that was sent before what is remembered of this worker can arrive any more: asks, and forgets.
  void settled(const Worker& worker);
  // Everything that waits ends with `reason`, all values go.
  void shutdown(const absl::Status& reason);

  void count(AgentTables& tables) const;
  // Messages that have not been answered.
  std::size_t messages_under_way() const { return under_way_.load(); }

  // nullptr while the agent is being destroyed.
  std::shared_ptr<Agent> agent() const;

 private:
  friend class RRefHandle;
  class MessageReferences;
  struct Waiter {
    uint64_t number = 0;
    uint64_t timer = 0;
    Found found;
  };
  struct Slot {
    std::optional<absl::StatusOr<Owned>> value;
    std::list<Waiter> waiters;
    // The waiters are being called: who comes now queues behind them, so that calls keep their order.
    bool announcing = false;
  };

  absl::StatusOr<uint32_t> add_reference(const std::shared_ptr<RRefHandle>& handle, const Worker& receiver,
                                         bool is_answer, proto::Payload& payload);
  absl::StatusOr<std::shared_ptr<RRefHandle>> receive_one(const proto::Reference& reference,
                                                          const Worker& from);
  void release(const RRefHandle& handle);

  // What an event of the protocol leads to, taken out of the tables under the lock, done outside of it.
  struct Effects {
    std::vector<Slot> freed;
    std::vector<Promise<void>> confirmed;
    std::vector<Promise<void>> refused;
    std::vector<ReferenceMessage> messages;
    std::vector<uint64_t> accused;
    std::vector<std::function<void(absl::StatusOr<ServiceReply>)>> answers;
  };
  Effects take_locked(References::Actions actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `refusal`: why the owner of a fork will never know it.
  void perform(Effects effects, const absl::Status& refusal);
  // Tells the protocol of something and does what follows, unless this has been shut down.
  void tell(absl::FunctionRef<void(References&, References::Actions&)> event,
            const absl::Status& refusal = absl::OkStatus());
  void free_values(std::vector<Slot> slots);
  // Values are user objects, whose destructors may call: they run on the executor, within this agent.
  template <class Slots>
  void destroy(Slots slots);
  // Whoever asked does not wait any more.
  void drop_fence_of(uint64_t asker);
  // Tells the owner that nobody will get a value that it may know nothing of.
  void creation_failed(const Remote& remote);
  void serve_creation_failed(const ServiceCall& call);
  // Sends a message, and again until it is answered or its receiver is lost.
  void send(ReferenceMessage message);
  void answered(const ReferenceMessage& message, const absl::StatusOr<ServiceReply>& reply);
  // The time of a waiter is up: its grace time, if `deadline` has not come yet, or all of it.
  void expire(const Id& rref, uint64_t waiter, absl::Time deadline, bool grace);

  ReferenceHost& agent_;
  Settlement& settlement_;
  const std::weak_ptr<Agent> weak_agent_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  References references_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Id, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
  // Fork -> whom to tell when the owner has confirmed it.
  absl::flat_hash_map<Id, Promise<void>> unconfirmed_ ABSL_GUARDED_BY(mutex_);
  // Fences that were asked for and cannot be answered yet: by the asker.
  struct FenceAsked {
    uint64_t round = 0;
    std::function<void(absl::StatusOr<ServiceReply>)> reply;
  };
  absl::flat_hash_map<uint64_t, FenceAsked> fences_asked_ ABSL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> under_way_{0};
};

}  // namespace gradwire::rpc
