#include "gradwire/rpc/agent.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/agent/current_agent.h"
#include "gradwire/rpc/agent/global_agent.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {
namespace {

std::vector<ExtensionFactory>& factories() {
  static auto* registered = new std::vector<ExtensionFactory>;
  return *registered;
}

}  // namespace

void register_extension(ExtensionFactory factory) { factories().push_back(factory); }

struct AgentGuard::Scope {
  explicit Scope(std::shared_ptr<const Agent> agent) : slot(std::move(agent)) {}
  CurrentAgent::Scope slot;
};

// Not `agent` itself: what start() returned shuts the agent down when it goes, and work that carries this
// slot along must not be the last to hold it.
AgentGuard::AgentGuard(const std::shared_ptr<Agent>& agent)
    : scope_(std::make_unique<Scope>(agent->shared_from_this())) {}
AgentGuard::~AgentGuard() = default;

Agent::Agent() = default;

Agent::~Agent() = default;

std::shared_ptr<Agent> Agent::start(const std::string& name, int rank, int world_size,
                                    RpcBackendOptions options) {
  install_crash_handler();
  std::shared_ptr<Agent> agent(new Agent);
  agent->impl_ = std::make_unique<AgentImpl>(*agent, std::move(options));
  for (ExtensionFactory factory : factories()) {
    std::unique_ptr<AgentExtension> extension = factory(*agent);
    if (GraphHook* hook = extension->graph_hook()) agent->impl_->graph_hook = hook;
    agent->impl_->extensions.push_back(std::move(extension));
  }
  throw_if_error(agent->impl_->start(name, rank, world_size));
  // The agent's own threads hold it too while they work for it; its end must come on the thread of its owner,
  // who can wait for them.
  return std::shared_ptr<Agent>(agent.get(), [agent](Agent*) mutable {
    auto end = [agent = std::move(agent)]() mutable {
      (void)agent->impl_->shut_down(false, absl::ZeroDuration());
      agent.reset();
    };
    if (Executor::current() != nullptr) {
      // The last owner was an object that a handler let go of, and a handler cannot wait for handlers. Nobody
      // is left who could join this thread.
      std::thread(std::move(end)).detach();
    } else {
      end();
    }
  });
}

std::shared_ptr<Agent> Agent::current_or_null() {
  if (const std::shared_ptr<const Agent>& here = CurrentAgent::get())
    return std::const_pointer_cast<Agent>(here);
  return global_agent();
}

std::shared_ptr<Agent> Agent::current() {
  std::shared_ptr<Agent> agent = current_or_null();
  if (agent == nullptr) {
    throw Error(absl::FailedPreconditionError(
        "no agent runs here: call init_rpc first, or enter one with AgentGuard"));
  }
  return agent;
}

WorkerInfo Agent::get_worker_info(const std::string& name) const {
  return value_or_throw(impl_->peers->find(name, -1))->worker.info();
}

std::vector<WorkerInfo> Agent::get_worker_infos() const {
  std::vector<WorkerInfo> infos;
  // An open group has no places that stay behind.
  const std::vector<Worker> workers =
      impl_->world_size == 0 ? impl_->peers->live_workers() : impl_->peers->workers();
  for (const Worker& worker : workers) infos.push_back(worker.info());
  return infos;
}

WorkerState Agent::worker_state(const std::string& name) const {
  return impl_->peers->state(*value_or_throw(impl_->peers->find(name, -1)));
}

std::shared_ptr<void> Agent::on_worker_change(
    std::function<void(const WorkerInfo& worker, WorkerState state)> callback) {
  return impl_->changes->subscribe(std::move(callback));
}

WorkerInfo Agent::wait_for_worker(const std::string& name, absl::Duration timeout) {
  return value_or_throw(impl_->wait_for_worker(name, timeout));
}

void Agent::on_accused(uint64_t incarnation) { impl_->on_accused(incarnation); }

void Agent::shutdown(bool graceful, absl::Duration timeout) {
  throw_if_error(impl_->shut_down(graceful, timeout));
}

AgentStatistics Agent::statistics() const {
  AgentStatistics statistics;
  statistics.calls_made = impl_->calls_made.load();
  statistics.calls_failed = impl_->calls_failed.load();
  statistics.calls_repeated = impl_->calls_repeated.load();
  statistics.calls_served = impl_->server->served();
  statistics.bytes_sent = impl_->peers->bytes_sent();
  statistics.bytes_received = impl_->peers->bytes_received();
  statistics.call_p50 = impl_->latencies.quantile(0.5);
  statistics.call_p99 = impl_->latencies.quantile(0.99);
  statistics.late_answers = impl_->late_answers.load();
  return statistics;
}

AgentTables Agent::tables() const {
  AgentTables tables;
  tables.pending_calls = impl_->pending.size();
  tables.open_requests = impl_->request_ids.size();
  impl_->server->count(tables);
  impl_->rrefs->count(tables);
  impl_->peers->count(tables);
  impl_->count_membership(tables);
  return tables;
}

const Worker& Agent::self() const { return impl_->self; }

absl::StatusOr<Worker> Agent::find_worker(const Destination& destination) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->find(destination));
  return peer->worker;
}

absl::StatusOr<Worker> Agent::find_worker_by_incarnation(uint64_t incarnation) const {
  return impl_->peers->find_by_incarnation(incarnation);
}

absl::Status Agent::worker_status(const Worker& worker) const { return impl_->peers->status(worker); }

Id Agent::next_id() { return {impl_->self.incarnation, impl_->next_id.fetch_add(1)}; }

const std::shared_ptr<ThreadPool>& Agent::executor() const { return impl_->executor; }
TimerQueue& Agent::timers() const { return *impl_->timers; }
RRefService& Agent::rrefs() const { return *impl_->rrefs; }
const std::vector<std::unique_ptr<AgentExtension>>& Agent::extensions() const { return impl_->extensions; }
GraphHook* Agent::graph_hook() const { return impl_->graph_hook; }

bool Agent::serves_on_arrival(uint32_t service) const {
  return std::any_of(impl_->extensions.begin(), impl_->extensions.end(), [service](const auto& extension) {
    return extension->serves(service) && extension->serves_on_arrival(service);
  });
}

void Agent::serve_service(ServiceCall call) {
  if (call.service == kPing) {
    call.reply(ServiceReply());
    return;
  }
  for (const auto& extension : impl_->extensions) {
    if (extension->serves(call.service)) {
      extension->serve(std::move(call));
      return;
    }
  }
  call.reply(absl::NotFoundError(
      absl::StrCat("service ", call.service, " is not linked into worker \"", impl_->self.name, "\"")));
}

}  // namespace gradwire::rpc
