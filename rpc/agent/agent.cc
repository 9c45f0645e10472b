#include "gradwire/rpc/calls/agent.h"

#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/crash_handler.h"
#include "gradwire/base/threads/execution_state.h"
#include "gradwire/rpc/agent/agent_impl.h"
#include "gradwire/rpc/agent/global_agent.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/core/call_context.h"
#include "gradwire/rpc/core/current_agent.h"
#include "gradwire/rpc/core/deadline.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"

namespace gradwire::rpc {
namespace {

std::vector<ExtensionFactory>& factories() {
  static auto* registered = new std::vector<ExtensionFactory>;
  return *registered;
}

// Whether the thread ends, so that its execution state is destroyed already.
bool thread_ends() {
  static thread_local bool ends = false;
  struct End {
    ~End() { ends = true; }
  };
  if (ends) return true;
  (void)CurrentAgent::get();
  // Constructed after the execution state, so destroyed before it.
  static thread_local End end;
  (void)&end;
  return false;
}

// The name of the worker for which the thread works, for the lines of the log. A name never changes.
std::string worker_of_thread() {
  if (thread_ends()) return "";
  const std::shared_ptr<const Agent>& agent = CurrentAgent::get();
  return agent == nullptr ? "" : agent->services().self().name;
}

std::shared_ptr<Executor> executor_of_thread() {
  if (thread_ends()) return nullptr;
  const std::shared_ptr<Agent> agent = Agent::current_or_null();
  return agent == nullptr ? nullptr : agent->executor();
}

[[maybe_unused]] const bool sources_are_set = [] {
  set_log_worker_source(&worker_of_thread);
  set_executor_source(&executor_of_thread);
  return true;
}();

}  // namespace

void register_extension(ExtensionFactory factory) { factories().push_back(factory); }

struct AgentGuard::Scope {
  explicit Scope(std::shared_ptr<const Agent> agent) : slot(std::move(agent)) {}
  CurrentAgent::Scope slot;
};

// Stores shared_from_this(), not `agent`. The pointer that start() returned shuts the agent down when its
// last copy is destroyed. Work that carries this slot must not hold that last copy.
AgentGuard::AgentGuard(const std::shared_ptr<Agent>& agent)
    : scope_(std::make_unique<Scope>(agent->shared_from_this())) {}
AgentGuard::~AgentGuard() = default;

Agent::Agent() = default;

Agent::~Agent() = default;

std::shared_ptr<Agent> Agent::start(const std::string& name, int rank, int world_size,
                                    RpcBackendOptions options) {
  install_crash_handler();
  const LogWorkerScope lines_name_it(name);
  std::shared_ptr<Agent> agent(new Agent);
  agent->services_ = std::make_unique<AgentServices>(agent, std::move(options));
  AgentImpl& impl = agent->impl();
  // Extensions exist before the agent joins: a peer may call one of them as soon as it reads the join.
  for (ExtensionFactory factory : factories()) {
    std::unique_ptr<AgentExtension> extension = factory(agent->services());
    if (GraphHook* hook = extension->graph_hook()) impl.runtime.graph_hook = hook;
    impl.runtime.extensions.push_back(std::move(extension));
  }
  throw_if_error(impl.start(name, rank, world_size));
  // The agent's own threads also hold the agent while they work for it. The returned pointer has an owner
  // count of its own, so that the shutdown runs on a thread of the user, which can wait for the agent's
  // threads.
  return std::shared_ptr<Agent>(agent.get(), [agent, impl = &impl](Agent*) mutable {
    // In a forked child the threads and the connections are those of the parent.
    if (!agent->impl().runtime.mark.here()) return leak_after_fork(agent);
    auto end = [agent = std::move(agent)]() mutable {
      (void)agent->impl().shut_down(false, absl::ZeroDuration());
      agent.reset();
    };
    if (Executor::current() != nullptr) {
      // A handler has destroyed the last copy, and a handler cannot wait for handlers. So another thread does
      // it. It is detached, because no owner is left that could join it.
      absl::StatusOr<std::thread> thread =
          impl->start_end(std::make_shared<absl::AnyInvocable<void()>>(std::move(end)));
      if (thread.ok()) thread->detach();
    } else {
      end();
    }
  });
}

std::shared_ptr<Agent> Agent::current_or_null() {
  if (const std::shared_ptr<const Agent>& current = CurrentAgent::get())
    return std::const_pointer_cast<Agent>(current);
  return global_agent();
}

std::shared_ptr<Agent> Agent::current() {
  std::shared_ptr<Agent> agent = current_or_null();
  if (agent == nullptr) {
    throw Error(absl::FailedPreconditionError(
        "this thread has no current agent: call init_rpc first, or enter an agent with AgentGuard"));
  }
  return agent;
}

AgentImpl& Agent::impl() const { return services_->impl(); }

AgentImpl& Agent::own_impl() const {
  throw_if_error(impl().runtime.check_process());
  return impl();
}

AgentServices& Agent::services() const { return *services_; }
Caller& Agent::caller() const { return *impl().caller; }
RRefService& Agent::rrefs() const { return *impl().rrefs; }
std::shared_ptr<Executor> Agent::executor() const { return impl().runtime.executor; }

WorkerInfo Agent::get_worker_info() const { return impl().runtime.self.info(); }

WorkerInfo Agent::get_worker_info(const std::string& name) const {
  return value_or_throw(own_impl().peers->find(name, -1))->worker.info();
}

std::vector<WorkerInfo> Agent::get_worker_infos() const {
  std::vector<WorkerInfo> infos;
  // In an open group a lost worker's name and id are not kept for a successor, so lost workers are left out.
  const std::vector<Worker> workers =
      own_impl().membership->is_open() ? own_impl().peers->live_workers() : own_impl().peers->workers();
  for (const Worker& worker : workers) infos.push_back(worker.info());
  return infos;
}

WorkerState Agent::worker_state(const std::string& name) const {
  return own_impl().peers->state(*value_or_throw(own_impl().peers->find(name, -1)));
}

std::shared_ptr<void> Agent::on_worker_change(
    std::function<void(const WorkerInfo& worker, WorkerState state)> callback) {
  return own_impl().membership->changes().subscribe(std::move(callback));
}

WorkerInfo Agent::wait_for_worker(const std::string& name, absl::Duration timeout) {
  return value_or_throw(own_impl().membership->wait_for_worker(name, timeout));
}

void Agent::shutdown(bool graceful, absl::Duration timeout) {
  AgentImpl& impl = own_impl();
  const LogWorkerScope lines_name_it(services_->self().name);
  throw_if_error(impl.shut_down(graceful, timeout));
}

void Agent::set_rpc_timeout(absl::Duration timeout) {
  throw_if_error(own_impl().runtime.rpc_timeout.set(timeout));
}
absl::Duration Agent::get_rpc_timeout() const { return own_impl().runtime.rpc_timeout.get(); }

void Agent::barrier(const std::vector<std::string>& names, const std::optional<absl::Duration>& timeout) {
  throw_if_error(own_impl().wait_at_barrier(names, services_->call_deadline(timeout)));
}

AgentStatistics Agent::statistics() const { return own_impl().statistics(); }
AgentTables Agent::tables() const { return own_impl().tables(); }
std::string Agent::metrics_text() const { return own_impl().metrics->text(); }
std::string Agent::metrics_address() const { return own_impl().metrics->address(); }

std::string Agent::flight_record() const {
  return own_impl().flight->text(own_impl().runtime.recorder->capacity());
}

AgentServices::AgentServices(std::weak_ptr<Agent> agent, RpcBackendOptions options)
    : agent_(std::move(agent)), impl_(std::make_unique<AgentImpl>(*this, std::move(options))) {}
AgentServices::~AgentServices() = default;

const Worker& AgentServices::self() const { return impl_->runtime.self; }
Id AgentServices::next_id() { return impl_->runtime.next_id(); }
const std::shared_ptr<ThreadPool>& AgentServices::executor() const { return impl_->runtime.executor; }
const std::shared_ptr<StreamOrder>& AgentServices::stream_order() const { return impl_->runtime.order; }
const std::shared_ptr<FenceWatch>& AgentServices::fences() const { return impl_->runtime.fences; }
const std::shared_ptr<metrics::Registry>& AgentServices::metrics() const { return impl_->runtime.metrics; }
const CallerLimits& AgentServices::caller_limits() const { return impl_->runtime.options.caller_limits; }
absl::Status AgentServices::refuse_over_limit(const Worker& from, const CallerLimit& limit) {
  return impl_->runtime.refusals.refuse(from, self(), limit, Clock::system().now());
}
TimerQueue& AgentServices::timers() const { return *impl_->runtime.timers; }

const std::vector<std::unique_ptr<AgentExtension>>& AgentServices::extensions() const {
  return impl_->runtime.extensions;
}

absl::StatusOr<Worker> AgentServices::find_worker(const Destination& destination) const {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->caller->find(destination));
  return peer->worker;
}

absl::StatusOr<Worker> AgentServices::find_worker_by_incarnation(uint64_t incarnation) const {
  return impl_->peers->find_by_incarnation(incarnation);
}

absl::Status AgentServices::worker_status(const Worker& worker) const { return impl_->peers->status(worker); }

void AgentServices::on_accused(uint64_t incarnation) { impl_->membership->worker_accused(incarnation); }

Future<ServiceReply> AgentServices::call_service(const Worker& to, uint32_t service, std::string body,
                                                 std::unique_ptr<TensorSet> tensors,
                                                 const ServiceOptions& options) {
  return impl_->caller->call_service(to, service, std::move(body), std::move(tensors), options);
}

OpenCalls AgentServices::open_calls(bool services) const { return impl_->flight->open_calls(services); }

CallRecorder& AgentServices::recorder() const { return *impl_->runtime.recorder; }

absl::Time AgentServices::call_deadline(const std::optional<absl::Duration>& timeout) const {
  return rpc::call_deadline(timeout.value_or(impl_->runtime.rpc_timeout.get()), Clock::system().now(),
                            CallContext::current().get());
}

absl::StatusOr<transport::Buffer> AgentServices::allocate_for(const Destination& to, std::size_t size) {
  GRADWIRE_RETURN_IF_ERROR(impl_->runtime.accepts_calls());
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, impl_->caller->find(to));
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Link> link, impl_->peers->link_to(peer));
  return link->allocate(size);
}

}  // namespace gradwire::rpc
