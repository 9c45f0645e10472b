#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/base/future.h"
#include "gradwire/rpc/agent_statistics.h"
#include "gradwire/rpc/constructor.h"
#include "gradwire/rpc/destination.h"
#include "gradwire/rpc/options.h"
#include "gradwire/rpc/worker.h"

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

// A worker: calls others, serves their calls, owns objects. Several live in one process. Thread-safe. Owned
// by shared_ptr; shut down by its last owner if shutdown() was not called (not gracefully).
class Agent final : public std::enable_shared_from_this<Agent> {
 public:
  // Joins the group and returns when all `world_size` workers have. `rank` becomes the id; -1 and -1: from
  // the environment or assigned, as the init method does. `world_size` 0: an open group, which workers join
  // and leave as they come; it returns at once, and a rank of -1 gets the next id. The name or id of a worker
  // that died may be taken: a new worker, which references to the old one do not reach. (A fixed group by
  // init_method is over when one of its processes has ended: docs/rpc.md.) Throws Error: InvalidArgument
  // (name or rank taken, another world size elsewhere), DeadlineExceeded (names who did not join),
  // Unavailable (the store cannot be reached).
  static std::shared_ptr<Agent> start(const std::string& name, int rank = -1, int world_size = -1,
                                      RpcBackendOptions options = {});
  ~Agent();

  // The agent that runs this handler, else the one init_rpc made. Throws FailedPrecondition when there is
  // neither.
  static std::shared_ptr<Agent> current();
  // The same, but nullptr.
  static std::shared_ptr<Agent> current_or_null();

  WorkerInfo get_worker_info() const;  // This worker.
  // NotFound lists the names there are.
  WorkerInfo get_worker_info(const std::string& name) const;
  std::vector<WorkerInfo> get_worker_infos() const;  // As rpc::get_worker_infos.

  // What this worker knows of another. NotFound as above.
  WorkerState worker_state(const std::string& name) const;
  // Calls back, on the executor, one call at a time and in order, when a worker joins (kAlive) and whenever
  // its state changes, until what is returned goes (a call under way then still ends). Workers whom this one
  // has no connection with are not suspected; that they died or left the group's log tells.
  [[nodiscard]] std::shared_ptr<void> on_worker_change(
      std::function<void(const WorkerInfo& worker, WorkerState state)> callback);
  // Returns when a worker of that name is in the group. Throws Error: DeadlineExceeded; Unavailable when
  // nobody can join since the store is gone; FailedPrecondition when the agent shuts down.
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

  // Counters of this moment, which are read one by one (rpc/agent_statistics.h).
  AgentStatistics statistics() const;
  // Sizes of all tables, for tests and for finding leaks (rpc/link/agent_tables.h).
  AgentTables tables() const;

  // The rest is for the templates that make calls and for the layers above.

  // The functions of the agent that only the layers above use (rpc/agent/agent_services.h).
  AgentServices& services() const;
  // The calls that this worker makes.
  Caller& caller() const;
  // The references that this worker owns and holds.
  RRefService& rrefs() const;
  // Where handlers and continuations run.
  std::shared_ptr<Executor> executor() const;

 private:
  Agent();
  AgentImpl& impl() const;

  std::unique_ptr<AgentServices> services_;
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
