#include "gradwire/rpc/agent/agent_impl.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/flight/trace_settings.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/metrics/registry.h"
#include "gradwire/base/name.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/random_id.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/agent/graceful_shutdown.h"
#include "gradwire/rpc/limits/caller_budget.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/metrics/peer_calls.h"
#include "gradwire/rpc/registry/registry.h"
#include "gradwire/rpc/transfers/transfer_watch.h"
#include "gradwire/security/setup/environment.h"
#include "gradwire/store/init/init_method.h"
#include "gradwire/store/measured/measured_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::rpc {
namespace {

// Time that queued messages have to leave: at the end of a graceful shutdown, and of any other one.
constexpr absl::Duration kFlush = absl::Seconds(2);
constexpr absl::Duration kShortFlush = absl::Milliseconds(200);
// The pause before another attempt to start a thread that ends the agent.
constexpr absl::Duration kRetryEnd = absl::Milliseconds(20);

// Gives a rank that is taken the same code as the directory, InvalidArgument, if the init method finds it.
absl::StatusOr<store::Rendezvous> with_directory_code(absl::StatusOr<store::Rendezvous> found) {
  if (!absl::IsAlreadyExists(found.status())) return found;
  return absl::InvalidArgumentError(found.status().message());
}

std::string reader_state(const transport::EventLoop& loop) {
  const transport::EventLoop::Driver driver = loop.driver();
  if (driver.thread == 0) return "no thread reads the connections";
  return absl::StrCat("thread ", driver.thread, ", which reads the connections, handles ",
                      driver.doing == nullptr ? "something" : driver.doing);
}

}  // namespace

AgentImpl::AgentImpl(ReferenceHost& agent, RpcBackendOptions options) : agent_(agent) {
  runtime.agent = agent.weak_agent();
  runtime.options = std::move(options);
  if (!runtime.options.metrics) return;
  // Extensions, which are made before start(), may count.
  runtime.metrics = std::make_shared<metrics::Registry>();
  runtime.call_metrics = std::make_shared<CallMetrics>(*runtime.metrics);
}

// Extensions use the other parts, so they are destroyed first.
AgentImpl::~AgentImpl() { runtime.extensions.clear(); }

// The steps:
//   1. Check the options.
//   2. Make the threads and the transports, then the parts, each with references to those that it uses.
//   3. Find the store, and join the group.
//   4. Connect to all members, if the options say so.
// After a failure in steps 3 and 4 other workers may know this one already, so everything is stopped in the
// usual order.
absl::Status AgentImpl::start(const std::string& name, int rank, int size) {
  GRADWIRE_RETURN_IF_ERROR(Registry::instance().conflicts());
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", name));
  runtime.self = {name, rank, random_id()};
  GRADWIRE_ASSIGN_OR_RETURN(runtime.options.security, security::with_environment(runtime.options.security));
  if (const std::string& policy = runtime.options.security.policy_file; !policy.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(runtime.policy, CallPolicy::open(policy, runtime.self));
  }
  ThreadPool::Options threads;
  threads.num_threads = runtime.options.num_worker_threads;
  threads.max_threads = std::max(runtime.options.max_worker_threads, runtime.options.num_worker_threads);
  threads.name = name;
  if (runtime.options.num_worker_threads < 1)
    return absl::InvalidArgumentError("num_worker_threads must be at least 1");
  if (runtime.options.max_observers < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_observers must not be negative, got ", runtime.options.max_observers));
  }
  if (const double share = runtime.options.wait.share; !(share >= 0 && share <= 1))
    return absl::InvalidArgumentError(absl::StrCat("wait.share must be from 0 to 1, got ", share));
  GRADWIRE_RETURN_IF_ERROR(check_caller_limits(runtime.options.caller_limits, runtime.options.flow));
  GRADWIRE_RETURN_IF_ERROR(runtime.rpc_timeout.set(runtime.options.rpc_timeout));
  GRADWIRE_ASSIGN_OR_RETURN(runtime.loop, transport::EventLoop::create());
  if (runtime.options.hooks != nullptr && runtime.options.hooks->loop_made)
    runtime.options.hooks->loop_made(runtime.loop);
  threads.poller = runtime.loop;
  threads.wait = runtime.options.wait;
  GRADWIRE_ASSIGN_OR_RETURN(runtime.executor, make_with_threads<ThreadPool>(threads));
  GRADWIRE_ASSIGN_OR_RETURN(runtime.timers, make_with_threads<TimerQueue>());
  runtime.fences = std::make_shared<FenceWatch>(*runtime.timers, runtime.executor);
  GRADWIRE_RETURN_IF_ERROR(runtime.devices.start(runtime.options, runtime.self));
  if (runtime.devices.any()) {
    runtime.handler_streams = tensor_backend()->make_handler_streams();
    runtime.order = std::make_shared<StreamOrder>();
  }
  GRADWIRE_ASSIGN_OR_RETURN(
      std::vector<std::unique_ptr<transport::Transport>> transports,
      make_transports(runtime.options, name, runtime.loop, transport::probe_shm, transport_parts_));
  const HeartbeatOptions& heartbeat = runtime.options.heartbeat;
  if (heartbeat.interval <= absl::ZeroDuration() || heartbeat.suspect_after < 3 * heartbeat.interval ||
      heartbeat.dead_after < heartbeat.suspect_after) {
    return absl::InvalidArgumentError(
        "heartbeat: suspect_after must be at least three times the interval, and dead_after must not be less "
        "than suspect_after");
  }
  GRADWIRE_ASSIGN_OR_RETURN(
      const uint64_t watch_over,
      transfers_over(runtime.options.log_transfers_over, std::getenv("GRADWIRE_LOG_TRANSFERS_OVER")));
  const auto transfers = std::make_shared<TransferWatch>(
      *runtime.timers, TransferWatch::Options{.self = name, .over = watch_over});
  const auto observers = std::make_shared<Observers>();
  peers = std::make_unique<Peers>(std::move(transports), *this, *runtime.timers,
                                  Peers::Options{runtime.executor, runtime.options.connect_timeout, heartbeat,
                                                 runtime.options.limits, observers, transfers,
                                                 [loop = runtime.loop](absl::AnyInvocable<void()> task) {
                                                   return loop->post_after_reading(std::move(task));
                                                 },
                                                 [loop = runtime.loop] { return reader_state(*loop); }});
  rrefs = std::make_shared<RRefService>(
      agent_, *peers, HoldLimit{runtime.options.caller_limits.max_references, &runtime.refusals});
  auto meetings = std::make_unique<Barriers>(agent_);
  barriers_ = meetings.get();
  runtime.extensions.push_back(std::move(meetings));
  if (auto ipc = runtime.devices.open_ipc(agent_, *peers)) runtime.extensions.push_back(std::move(ipc));
  runtime.recorder = std::make_unique<CallRecorder>(trace_settings().agent_records(
      std::min(runtime.options.flight.records, FlightRecordOptions::kMostRecords)));
  caller = std::make_unique<Caller>(runtime, *peers, *rrefs);
  server = std::make_unique<Server>(runtime, *rrefs);
  membership = std::make_unique<MembershipDriver>(runtime, *peers, rrefs->driver());
  metrics = std::make_unique<AgentMetrics>(
      AgentMetrics::Sources{runtime, *peers, *transport_parts_.shm, *transport_parts_.pool,
                            [this] { return statistics(); }, [this] { return tables(); }});
  flight = std::make_unique<AgentFlight>(AgentFlight::Sources{runtime, *caller, server->calls(), *peers});
  runtime.on_timeout = [this](const absl::Status& error, absl::Duration timeout) {
    flight->timed_out(error, timeout);
  };
  inspector = std::make_unique<Inspector>(Inspector::Sources{
      .runtime = runtime,
      .peers = *peers,
      .server = *server,
      .rrefs = *rrefs,
      .store = *store_times_,
      .open_calls = [this] { return flight->open_calls(/*services=*/true); },
      .tables = [this] { return tables(); },
      .statistics = [this] { return statistics(); },
  });
  observers->serve(*inspector, static_cast<std::size_t>(runtime.options.max_observers));

  absl::Status joined = [&]() -> absl::Status {
    std::shared_ptr<store::Store> store = runtime.options.store;
    if (store == nullptr) {
      // The group name keeps this rendezvous apart from that of a process group: both may use the same
      // address, and then share the store that is hosted there.
      GRADWIRE_ASSIGN_OR_RETURN(store::Rendezvous found, with_directory_code(store::rendezvous(
                                                             runtime.options.init_method, rank, size,
                                                             {.timeout = runtime.options.join_timeout,
                                                              .group_name = "rpc",
                                                              .security = runtime.options.security})));
      store = found.store;
      rank = found.rank;
      size = found.world_size;
    }
    if (size < 0)
      return absl::InvalidArgumentError(absl::StrCat("the world size must not be negative, got ", size));
    if (size > 0 && (rank < 0 || rank >= size)) {
      return absl::InvalidArgumentError(absl::StrCat("rank of worker \"", name, "\" out of range: got ", rank,
                                                     ", expected a rank in [0, ", size, ")"));
    }
    store = std::make_shared<store::PrefixStore>("rpc", store);
    if (runtime.metrics != nullptr)
      store = std::make_shared<store::MeasuredStore>(std::move(store), runtime.metrics, store_times_);
    // Before the group waits for its members: metrics show who is missing.
    GRADWIRE_RETURN_IF_ERROR(metrics->serve());
    GRADWIRE_RETURN_IF_ERROR(membership->join(std::move(store), rank, size));
    if (runtime.options.connect_at_init) GRADWIRE_RETURN_IF_ERROR(connect_to_all());
    return absl::OkStatus();
  }();
  if (!joined.ok()) {
    (void)stop(joined, absl::ZeroDuration());
    return joined;
  }
  const std::size_t members = peers->live_workers().size();
  log(LogLevel::kInfo, "worker \"", name, "\" (id ", runtime.self.id, ") joined the group: ", members,
      members == 1 ? " member" : " members");
  return absl::OkStatus();
}

absl::Status AgentImpl::wait_at_barrier(const std::vector<std::string>& names, absl::Time deadline) {
  GRADWIRE_RETURN_IF_ERROR(runtime.accepts_calls());
  std::vector<Worker> members;
  if (names.empty()) {
    if (membership->is_open()) {
      return absl::InvalidArgumentError(
          "rpc_barrier needs the names of its workers in an open group, where workers come and leave");
    }
    members = peers->workers();
  }
  for (const std::string& name : names) {
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Peer> peer, peers->find(name, -1));
    members.push_back(peer->worker);
  }
  return barriers_->wait(std::move(members), deadline);
}

AgentStatistics AgentImpl::statistics() const {
  AgentStatistics statistics;
  caller->count(statistics);
  statistics.calls_served = server->calls().served();
  if (runtime.policy != nullptr) statistics.calls_denied = runtime.policy->denied();
  statistics.calls_over_limit = runtime.refusals.count();
  statistics.bytes_sent = peers->bytes_sent();
  statistics.bytes_received = peers->bytes_received();
  return statistics;
}

AgentTables AgentImpl::tables() const {
  AgentTables tables;
  caller->count(tables);
  server->calls().count(tables);
  rrefs->driver().count(tables);
  peers->count(tables);
  membership->count(tables);
  if (runtime.fences != nullptr) tables.device_waits = runtime.fences->size();
  if (const IpcChannel* ipc = runtime.devices.ipc()) ipc->count(tables);
  return tables;
}

absl::Status AgentImpl::connect_to_all() {
  const absl::Time deadline = Clock::system().now() + runtime.options.join_timeout;
  // All pings are sent before the first answer is awaited, so that the connections are made at the same time.
  std::vector<std::pair<Worker, Future<ServiceReply>>> pings;
  for (const Worker& worker : peers->workers()) {
    pings.emplace_back(worker, caller->call_service(worker, kPing, "", nullptr, {deadline, /*repeat=*/true}));
  }
  for (auto& [worker, ping] : pings) {
    if (absl::Status status = ping.result().status(); !status.ok()) {
      return with_context(status, absl::StrCat("connecting to worker \"", worker.name, "\""));
    }
  }
  return absl::OkStatus();
}

// The tensors that a message names, in this process or in another one, live until the message has been
// decoded or dropped. So the message carries one more buffer, which owns them.
void AgentImpl::keep_handed_over(const proto::Payload& payload, const Worker& from,
                                 std::vector<transport::Buffer>& buffers) const {
  if (!payload.has_transfer() || tensor_backend() == nullptr) return;
  buffers.emplace_back(nullptr, 0, tensor_backend()->arrived(payload, runtime.devices.arrival(from)));
}

void AgentImpl::on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) {
  keep_handed_over((*envelope)->request().arguments(), from, buffers);
  server->on_request(from, link, std::move(envelope), std::move(buffers));
}

void AgentImpl::on_response(const Worker& from, EnvelopePtr envelope,
                            std::vector<transport::Buffer> buffers) {
  keep_handed_over((*envelope)->response().result(), from, buffers);
  caller->answer(from, std::move(envelope), std::move(buffers));
}

std::string AgentImpl::callee_of(const Worker& peer, uint64_t call_id) {
  return caller->pending().callee(call_id, peer.incarnation);
}

void AgentImpl::on_cancel(const Worker& from, uint64_t link, uint64_t call_id) {
  server->calls().cancel(from, link, call_id,
                         absl::CancelledError(absl::StrCat("worker \"", from.name, "\" cancelled the call")));
}

void AgentImpl::on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  const absl::Status gone =
      absl::CancelledError(absl::StrCat("worker \"", peer.name, "\" is disconnected: ", reason.message()));
  // First the calls that the peer made here: their callees should end. Then this worker's own calls on the
  // link, which run code of the user when they end.
  server->calls().cancel_link(link.number(), gone, /*caller_is_lost=*/!peers->status(peer).ok());
  caller->link_closed(peer, link, reason);
}

void AgentImpl::on_link_restored(const Worker& peer) { rrefs->driver().link_restored(peer); }

void AgentImpl::on_settled(const Worker& peer) {
  rrefs->driver().settled(peer);
  if (IpcChannel* ipc = runtime.devices.ipc()) ipc->settled(peer);
}

void AgentImpl::on_worker_state(const Worker& peer, WorkerState state) {
  membership->worker_state(peer, state);
}

void AgentImpl::on_unresponsive(const Worker& peer, const absl::Status& reason) {
  membership->worker_unresponsive(peer, reason);
}

void AgentImpl::on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) {
  log(LogLevel::kInfo, "worker \"", runtime.self.name, "\" lost worker \"", peer.name,
      "\": ", reason.message());
  server->calls().worker_lost(peer, reason);
  // When all members stop, their departures need no fence: every value is destroyed at the end of its owner.
  if (!membership->ending()) rrefs->driver().lose(peer.incarnation, reason);
  for (const auto& extension : runtime.extensions) extension->worker_lost(peer, reason);
  if (IpcChannel* ipc = runtime.devices.ipc()) ipc->lose(peer, /*dead=*/state == WorkerState::kDead);
  caller->worker_lost(peer, reason);
  membership->worker_lost(peer, state, reason);
}

absl::Status AgentImpl::shut_down(bool graceful, absl::Duration timeout) {
  if (Executor::current() == runtime.executor.get() && runtime.executor != nullptr) {
    return absl::FailedPreconditionError(
        "shutdown must not be called from a handler: it waits for the handlers");
  }
  const absl::Status reason =
      absl::CancelledError(absl::StrCat("worker \"", runtime.self.name, "\" has shut down"));
  // This also ends a graceful shutdown in which another thread waits.
  if (!graceful || membership->directory() == nullptr) return stop(reason, kShortFlush);
  const absl::Time deadline =
      timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : Clock::system().now() + timeout;
  return ended_gracefully_.run([&] {
    absl::Status status;
    // If calls are refused already, a shutdown that was not graceful has come first.
    if (runtime.accepts_calls().ok()) {
      status = shut_down_gracefully({runtime, *peers, rrefs->driver(), *caller, server->calls(), *membership},
                                    deadline);
    }
    status.Update(stop(reason, kFlush));
    return status;
  });
}

absl::Status AgentImpl::stop(const absl::Status& reason, absl::Duration flush) {
  return stopped_.run([&] {
    runtime.closed = true;
    if (metrics != nullptr) metrics->stop();
    log(LogLevel::kInfo, "worker \"", runtime.self.name, "\" shuts down: ", reason.message());
    // `closed` is set, so this returns the error that refused calls get.
    const absl::Status closed = runtime.accepts_calls();
    // The order matters: first end what may call (handlers, extensions, pending calls), then leave the group,
    // then close the connections, and join the threads last.
    // For its callers this worker cannot be reached any more. The reason, which peers get with the Goodbye,
    // has another code: it says that this worker has left, and refuses nobody (Handshake::part).
    server->calls().stop(
        absl::UnavailableError(absl::StrCat("worker \"", runtime.self.name, "\" has shut down")));
    for (const auto& extension : runtime.extensions) extension->shutdown(closed);
    runtime.fences->stop(closed);
    caller->end_all(closed);
    membership->stop(closed);
    peers->shutdown(reason, flush);
    rrefs->driver().shutdown(closed);
    return end_threads();
  });
}

void AgentImpl::join_threads() {
  // Every call is refused and every wait has ended, so handlers that are still running end, and the pool
  // drains.
  runtime.executor->shutdown();
  runtime.timers->shutdown();
  transport::end(*runtime.loop);
}

// The timers' thread exists until join_threads(), so it can wait for another thread.
absl::StatusOr<std::thread> AgentImpl::start_end(std::shared_ptr<absl::AnyInvocable<void()>> step) {
  absl::StatusOr<std::thread> thread = start_thread("agent-end", [step] { std::exchange(*step, nullptr)(); });
  if (thread.ok()) return thread;
  // The timer keeps its copy, so that it can run again if this throws.
  runtime.timers->schedule(Clock::system().now() + kRetryEnd, [this, step = std::move(step)] {
    absl::StatusOr<std::thread> later = start_end(step);
    if (later.ok()) later->detach();
  });
  return thread;
}

// A handler may ignore that its call was cancelled, so joining the threads can take indefinitely. A separate
// thread joins them, and this one waits for it no longer than handler_timeout.
absl::Status AgentImpl::end_threads() {
  std::shared_ptr<Agent> keep = runtime.agent.lock();
  const absl::Duration timeout = runtime.options.handler_timeout;
  if (keep == nullptr || timeout == absl::InfiniteDuration()) {
    join_threads();
    return absl::OkStatus();
  }
  std::promise<void> promise;
  const std::future<void> joined = promise.get_future();
  // The joiner holds the agent, because the handlers need it while they run.
  const auto begun = std::make_shared<std::atomic<bool>>(false);
  absl::StatusOr<std::thread> joiner = start_end(std::make_shared<absl::AnyInvocable<void()>>(
      [this, keep = std::move(keep), promise = std::move(promise), begun]() mutable {
        if (begun->exchange(true)) return;
        join_threads();
        promise.set_value();
      }));
  // Without running tasks the threads end at once, so this thread can join them.
  if (!joiner.ok() && runtime.executor->pending() == 0 && !begun->exchange(true)) {
    join_threads();
    return absl::OkStatus();
  }
  if (joined.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready) {
    if (joiner.ok()) joiner->join();
    return absl::OkStatus();
  }
  if (joiner.ok()) joiner->detach();
  if (!joiner.ok() && !*begun) {
    return with_context(joiner.status(), absl::StrCat("the threads of worker \"", runtime.self.name,
                                                      "\" were not joined after its shutdown"));
  }
  // Calls that wait for their turn have no thread.
  std::set<std::string> callees;
  for (const CallReport& call : server->calls().calls_in_progress()) {
    if (call.state == CallState::kRunning) callees.insert(absl::StrCat("\"", call.callee, "\""));
  }
  absl::Status unfinished = absl::DeadlineExceededError(
      callees.empty()
          ? absl::StrCat("a continuation or a destructor on a thread of worker \"", runtime.self.name,
                         "\" is still running ", absl::FormatDuration(timeout),
                         " after its shutdown; its thread was not joined")
          : absl::StrCat("handlers of worker \"", runtime.self.name, "\" are still running ",
                         absl::FormatDuration(timeout),
                         " after its shutdown cancelled their calls: ", absl::StrJoin(callees, ", "),
                         "; their threads were not joined; let the handlers check "
                         "CallContext::current()->cancelled()"));
  log(LogLevel::kError, unfinished.message());
  return unfinished;
}

}  // namespace gradwire::rpc
