#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/destination.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/core/worker.h"
#include "gradwire/rpc/registry/constructor.h"

namespace gradwire::rpc {

class AgentImpl;
class AgentServices;
class Caller;
class RRefService;
struct AgentTables;
template <class T>
class RRef;
struct Op;
struct Script;

// A worker of a group: it calls other workers, serves their calls and owns objects. One process may have
// several agents. Thread-safe. Owned by shared_ptr. When the last owner goes before shutdown() was called,
// the destructor shuts the agent down without waiting for the other workers.
class Agent final : public std::enable_shared_from_this<Agent> {
 public:
  // Joins the group and returns when all `world_size` workers have joined. `rank` becomes the worker's id. If
  // `rank` and `world_size` are -1, the init method takes them from the environment or assigns them.
  // `world_size` 0 makes an open group: workers may join and leave at any time, start() returns at once, and
  // a rank of -1 gets the next free id.
  //
  // A new worker may take the name and id of a worker that died. References to the old worker do not reach
  // the new one. (A group of fixed size that was formed by an init_method ends when one of its processes has
  // ended: docs/rpc.md.)
  //
  // Throws Error: InvalidArgument when the name or rank is taken, or when the workers name different world
  // sizes; DeadlineExceeded, with the ranks of the workers that did not join; Unavailable when the store
  // cannot be reached.
  static std::shared_ptr<Agent> start(const std::string& name, int rank = -1, int world_size = -1,
                                      RpcBackendOptions options = {});
  ~Agent();

  // The agent that runs the current handler, or else the agent that init_rpc made. Throws FailedPrecondition
  // when neither exists.
  static std::shared_ptr<Agent> current();
  // As current(), but returns nullptr instead of throwing.
  static std::shared_ptr<Agent> current_or_null();

  WorkerInfo get_worker_info() const;  // This worker.
  // Throws NotFound, which lists the names of the group.
  WorkerInfo get_worker_info(const std::string& name) const;
  std::vector<WorkerInfo> get_worker_infos() const;  // As rpc::get_worker_infos.

  // The state of another worker, as far as this worker knows. Throws NotFound as above.
  WorkerState worker_state(const std::string& name) const;
  // Runs `callback` when a worker joins (kAlive, once) and whenever its state changes; kAlive again means
  // that a suspicion has ended. The callbacks run on the executor, one at a time and in order, until the
  // returned handle is destroyed; a callback that runs at that moment is not interrupted. A worker without a
  // connection to this one is never suspected: this worker learns from the group's log that it died or left.
  // If the group has declared this worker dead, each other member is reported as kDead, because the group is
  // lost for it.
  [[nodiscard]] std::shared_ptr<void> on_worker_change(
      std::function<void(const WorkerInfo& worker, WorkerState state)> callback);
  // Waits until a worker of that name is in the group. Throws Error:
  //   DeadlineExceeded    it has not joined within `timeout`
  //   Unavailable         as DeadlineExceeded, and the store is lost at that time, so that nobody can join. A
  //                       wait without a limit ends with it about a second after the store was lost
  //   Aborted             nobody can join any more, because the store was started again without its keys, or
  //                       the group has declared this worker dead
  //   FailedPrecondition  the agent shuts down
  WorkerInfo wait_for_worker(const std::string& name, absl::Duration timeout = absl::InfiniteDuration());

  // As rpc::shutdown (rpc/rpc.h). Idempotent.
  void shutdown(bool graceful = true, absl::Duration timeout = absl::InfiniteDuration());

  // As rpc::set_rpc_timeout, rpc::get_rpc_timeout and rpc::rpc_barrier (rpc/init_rpc.h).
  void set_rpc_timeout(absl::Duration timeout);
  absl::Duration get_rpc_timeout() const;  // As rpc::get_rpc_timeout.
  void barrier(const std::vector<std::string>& names = {},
               const std::optional<absl::Duration>& timeout = std::nullopt);  // As rpc::rpc_barrier.

  // Calls from this agent. They behave as the free functions of the same names (rpc/calls/call.h,
  // rpc/calls/op.h). Include "gradwire/rpc/rpc.h" to use them.
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
  template <auto F, class D, class... A>
  auto rpc_stream(D&& to, A&&... arguments);  // As rpc::rpc_stream (rpc/stream.h).

  // The current values of the counters, read one after the other (rpc/core/agent_statistics.h).
  AgentStatistics statistics() const;
  // The sizes of all tables, for tests and to find leaks (rpc/link/agent_tables.h).
  AgentTables tables() const;
  // The metrics as Prometheus's text (docs/metrics.md).
  std::string metrics_text() const;
  // Where they are served: "127.0.0.1:9100" or "unix:PATH"; empty if they are not
  // (RpcBackendOptions::metrics_address).
  std::string metrics_address() const;

  // The flight record of this worker as text: the calls that are open, and the last calls and backward passes
  // (RpcBackendOptions::flight, docs/observability.md). For logs and people; its form may change.
  std::string flight_record() const;

  // The functions below are for the templates that make calls, and for the layers above rpc.

  // The services of the agent for the layers above (rpc/calls/agent_services.h).
  AgentServices& services() const;
  // Makes the calls of this worker.
  Caller& caller() const;
  // Manages the references that this worker owns and holds.
  RRefService& rrefs() const;
  // Runs handlers and continuations.
  std::shared_ptr<Executor> executor() const;

 private:
  Agent();
  AgentImpl& impl() const;
  // Throws FailedPrecondition in a forked child.
  AgentImpl& own_impl() const;

  std::unique_ptr<AgentServices> services_;
};

// Makes `agent` the current one in a scope: Agent::current() returns it there. For tests and for programs
// with several agents.
class AgentGuard {
 public:
  // Makes `agent` current. Its owner may still shut it down. The destructor restores the agent that was
  // current before.
  explicit AgentGuard(const std::shared_ptr<Agent>& agent);
  ~AgentGuard();
  AgentGuard(const AgentGuard&) = delete;
  AgentGuard& operator=(const AgentGuard&) = delete;

 private:
  struct Scope;
  const std::unique_ptr<Scope> scope_;
};

}  // namespace gradwire::rpc
