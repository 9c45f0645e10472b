#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/base/threads/thread_pool.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/id.h"
#include "gradwire/rpc/agent/extension.h"
#include "gradwire/rpc/caller/outgoing_call.h"
#include "gradwire/rpc/constructor.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/options.h"
#include "gradwire/rpc/worker.h"
#include "gradwire/rpc/worker_state.h"

namespace gradwire::rpc {

class AgentImpl;
class RRefService;
template <class T>
class RRef;
struct Op;
struct Script;

// Totals of an agent since it started.
struct AgentStatistics {
  uint64_t calls_made = 0;    // Sent, the framework's own messages that are answered included.
  uint64_t calls_failed = 0;  // Of those, the ones that ended with an error.
  // Attempts beyond the first, of calls of idempotent functions.
  uint64_t calls_repeated = 0;
  uint64_t calls_served = 0;    // Of any worker, itself included.
  uint64_t bytes_sent = 0;      // Over connections that are open or were.
  uint64_t bytes_received = 0;  // Likewise.
  // Of calls made, from the call to its answer.
  absl::Duration call_p50;
  absl::Duration call_p99;  // The 99th percentile of the same.
  // Answers that came after their call had ended, or twice.
  uint64_t late_answers = 0;
};

// A worker: calls others, serves their calls, owns objects. Several live in one process. Thread-safe. Owned
// by shared_ptr; shut down by its last owner if shutdown() was not called (not gracefully).
class Agent : public std::enable_shared_from_this<Agent> {
 public:
  // Joins the group and returns when all `world_size` workers have. `rank` becomes the id; -1 and -1: from
  // the environment or assigned, as the init method does. `world_size` 0: an open group, which workers join and leave as
  // they come; it returns at once, and a rank of -1 gets the next id. The name or id of a worker that died may be taken:
  // a new worker, which references to the old one do not reach. (A fixed group by init_method is over when one of its
  // processes has ended: docs/rpc.md.) Throws Error: InvalidArgument (name or rank taken,
  // another world size elsewhere), DeadlineExceeded (names who did not join), Unavailable (the store cannot
  // be reached).
  static std::shared_ptr<Agent> start(const std::string& name, int rank = -1, int world_size = -1,
                                      RpcBackendOptions options = {});
  ~Agent();

  // The agent that runs this handler, else the one init_rpc made. Throws FailedPrecondition when there is
  // neither.
  static std::shared_ptr<Agent> current();
  // The same, but nullptr.
  static std::shared_ptr<Agent> current_or_null();

  WorkerInfo get_worker_info() const { return self().info(); }  // This worker.
  // NotFound lists the names there are.
  WorkerInfo get_worker_info(const std::string& name) const;
  std::vector<WorkerInfo> get_worker_infos() const;  // As rpc::get_worker_infos.

  // What this worker knows of another. NotFound as above.
  WorkerState worker_state(const std::string& name) const;
  // Calls back, on the executor, one call at a time and in order, when a worker joins (kAlive) and whenever its state
  // changes, until what is returned goes (a call under way then still ends). Workers whom this one has no connection with
  // are not suspected; that they died or left the group's log tells.
  [[nodiscard]] std::shared_ptr<void> on_worker_change(
      std::function<void(const WorkerInfo& worker, WorkerState state)> callback);
  // Returns when a worker of that name is in the group. Throws Error: DeadlineExceeded; Unavailable when nobody can join
  // since the store is gone; FailedPrecondition when the agent shuts down.
  WorkerInfo wait_for_worker(const std::string& name, absl::Duration timeout = absl::InfiniteDuration());

  // As rpc::shutdown (rpc/rpc.h). Idempotent.
  void shutdown(bool graceful = true, absl::Duration timeout = absl::InfiniteDuration());

  // The calls, as the free functions of the same names (rpc/call.h, rpc/op.h; include "rpc/rpc.h").
  template <auto F, class... A>
  auto rpc_sync(const Destination& to, A&&... arguments);
  template <auto F, class... A>
  auto rpc_async(const Destination& to, A&&... arguments);  // As rpc::rpc_async.
  template <auto F, class... A>
  auto remote(const Destination& to, A&&... arguments);  // As rpc::remote.
  template <class T, class... A, class C = DeclaredConstructor<T>>
  RRef<T> remote(const Destination& to, A&&... arguments);  // As rpc::remote of an object.
  template <class T, class C, class... A>
  T rpc_sync(const Destination& to, const C& callee, A&&... arguments);  // As rpc::rpc_sync.
  template <class T, class C, class... A>
  Future<T> rpc_async(const Destination& to, const C& callee, A&&... arguments);  // As rpc::rpc_async.

  AgentStatistics statistics() const;  // Counters of this moment; they are read one by one.
  AgentTables tables() const;          // Sizes of all tables, for tests and for looking for leaks.

  // ---- For the layers above.

  const Worker& self() const;  // This worker. Set before start() returns.
  absl::StatusOr<Worker> find_worker(const Destination& destination) const;       // NotFound as above.
  absl::StatusOr<Worker> find_worker_by_incarnation(uint64_t incarnation) const;  // Or NotFound.
  // Unavailable or Aborted, with the reason, once the worker was lost; OK before.
  absl::Status worker_status(const Worker& worker) const;
  // How call_service() sends.
  struct ServiceOptions {
    absl::Time deadline = absl::InfiniteFuture();  // On Clock::system().
    // Sent again, on a new connection, when the old one broke before the answer, until the worker is lost.
    // For messages that may arrive twice.
    bool repeat = false;
  };
  // Sends a message to the counterpart of an extension. `tensors` (may be nullptr) are captured unless nobody
  // else holds them. Errors: Unavailable, DeadlineExceeded, Cancelled, FailedPrecondition after shutdown, or
  // what the other side replied.
  Future<ServiceReply> call_service(const Worker& to, uint32_t service, std::string body,
                                    std::unique_ptr<TensorSet> tensors, const ServiceOptions& options);

  // This agent's extension of type E, or nullptr.
  template <class E>
  E* extension() const {
    for (const auto& candidate : extensions()) {
      if (E* found = dynamic_cast<E*>(candidate.get())) return found;
    }
    return nullptr;
  }

  // When a call that may take `timeout` (zero or infinite: for ever; none: the agent's rpc_timeout) and
  // starts now must have ended, on Clock::system(); no later than the call that the calling thread serves.
  absl::Time call_deadline(const std::optional<absl::Duration>& timeout) const;

  // Memory aligned to 64 bytes from which a message to `to` may travel without being copied, when it is given away.
  // Connects if need be. Errors as a call's, and ResourceExhausted.
  absl::StatusOr<transport::Buffer> allocate_for(const Destination& to, std::size_t size);

  // A fresh id: unique over all workers.
  Id next_id();

  const std::shared_ptr<ThreadPool>& executor() const;  // Where handlers and continuations run.
  TimerQueue& timers() const;                           // Its callbacks are short and never the user's.
  RRefService& rrefs() const;                           // The references that this worker owns and holds.

  // What is done with an answer: called once, on a thread of the transport or a timer, or inside send_call.
  using Completion = absl::AnyInvocable<void(absl::StatusOr<IncomingPayload>)>;
  // Sends `call`; returns its id. An error of the call's status() goes to `done` too.
  uint64_t send_call(OutgoingCall& call, Completion done);
  // Gives up: `done` gets `reason` (unless it was called before) and the callee hears of it.
  void cancel_call(uint64_t id, absl::Status reason);

 private:
  friend class AgentImpl;
  friend class OutgoingCall;
  friend class RRefService;
  friend class Server;
  friend class ServedCall;
  Agent();

  const std::vector<std::unique_ptr<AgentExtension>>& extensions() const;
  // nullptr when no extension has one.
  GraphHook* graph_hook() const;
  // Somebody says that this worker, an incarnation, is dead.
  void on_accused(uint64_t incarnation);
  // Whether some layer serves calls of this service on arrival.
  bool serves_on_arrival(uint32_t service) const;
  // Hands a service call to the layer it belongs to.
  void serve_service(ServiceCall call);

  std::unique_ptr<AgentImpl> impl_;
};

// Runs a scope as if within `agent`: current() returns it there. For tests and programs with several agents.
class AgentGuard {
 public:
  // Enters `agent`, whose owner may still shut it down. The destructor enters what was current before.
  explicit AgentGuard(const std::shared_ptr<Agent>& agent);
  ~AgentGuard();
  AgentGuard(const AgentGuard&) = delete;
  AgentGuard& operator=(const AgentGuard&) = delete;

 private:
  struct Scope;
  const std::unique_ptr<Scope> scope_;
};

}  // namespace gradwire::rpc
