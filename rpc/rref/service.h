#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/future.h"
#include "base/mutex.h"
#include "proto/value.pb.h"
#include "rpc/encoder.h"
#include "rpc/extension.h"
#include "rpc/id.h"
#include "rpc/rref/handle.h"
#include "rpc/rref/holder_table.h"
#include "rpc/rref/owner_table.h"
#include "rpc/server_call.h"
#include "rpc/strand.h"
#include "rpc/worker.h"

namespace gradwire::rpc {

class Agent;

// Service numbers of the rpc layer (proto/rpc.proto).
inline constexpr uint32_t kForkAdd = 1;
inline constexpr uint32_t kForkConfirmed = 2;
inline constexpr uint32_t kForkDelete = 3;
inline constexpr uint32_t kPing = 4;

// The references of one agent: the values it owns, the forks it holds, and the messages about them
// (proto/rpc.proto, "References"). Decides nothing itself: OwnerTable and HolderTable do. Thread-safe.
// Handles may outlive it.
class RRefService : public std::enable_shared_from_this<RRefService> {
 public:
  explicit RRefService(Agent& agent);

  // ---- The owner's side.

  struct Owned {
    std::shared_ptr<void> value;
    const TypeOps* type = nullptr;
    // Where the methods of a serial class queue; nullptr for others.
    std::shared_ptr<Strand> strand;

    // InvalidArgument when the value is of another type, whatever the reference to it claimed.
    template <class T>
    absl::StatusOr<std::shared_ptr<T>> as() const {
      if (type->id() == typeid(T)) return std::static_pointer_cast<T>(value);
      return absl::InvalidArgumentError(absl::StrCat("the value behind the RRef is a ", type->name()));
    }
  };
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
  // The message never left: takes back the forks that were made for its receiver.
  void undo(const proto::Payload& payload, const Worker& receiver);
  // One handle for each of payload.references. InvalidArgument for what cannot be.
  absl::StatusOr<std::vector<std::shared_ptr<RRefHandle>>> receive(const proto::Payload& payload,
                                                                   const Worker& from);

  // Services 1 to 3.
  void serve(ServiceCall call);
  void worker_lost(const Worker& worker, const absl::Status& reason);
  // Everything that waits ends with `reason`, all values go.
  void shutdown(const absl::Status& reason);

  std::size_t owned() const;
  std::size_t forks() const;
  std::size_t children() const;
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
  // The owner has answered about a fork that came from `sharer`, or is lost.
  void child_added(const Worker& sharer, const Id& rref, const Id& child, const Promise<void>& confirmed,
                   absl::Status status);
  std::shared_ptr<RRefHandle> receive_owned(const Id& rref, const Id& child, const std::string& type,
                                            const Worker& from);
  void release(const RRefHandle& handle);
  // Takes the values out of the table, for free_values to destroy outside the lock.
  std::vector<Slot> take_freed_locked(const OwnerTable::Freed& freed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void free_values(std::vector<Slot> slots);
  // Values are user objects, whose destructors may call: they run on the executor, within this agent.
  template <class Slots>
  void destroy(Slots slots);
  void send_deletes(const HolderTable::Deletes& deletes);
  // Sends a message and repeats it until it is answered or `to` is lost; then calls `done`.
  void send(const Worker& to, uint32_t service, std::string body,
            absl::AnyInvocable<void(absl::Status)> done);
  void confirm_to_sharer(const Worker& sharer, const Id& rref, const Id& child);
  // The time of a waiter is up: its grace time, if `deadline` has not come yet, or all of it.
  void expire(const Id& rref, uint64_t waiter, absl::Time deadline, bool grace);

  Agent& agent_;
  const std::weak_ptr<Agent> weak_agent_;

  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  OwnerTable owner_table_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Id, Slot> slots_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
  HolderTable holder_table_ ABSL_GUARDED_BY(mutex_);
  // Fork -> whom to tell when the owner has confirmed it.
  absl::flat_hash_map<Id, Promise<void>> unconfirmed_ ABSL_GUARDED_BY(mutex_);

  std::atomic<std::size_t> under_way_{0};
};

}  // namespace gradwire::rpc
