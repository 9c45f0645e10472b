#include "gradwire/rpc/agent/agent_impl.h"

#include <algorithm>
#include <future>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/name.h"
#include "gradwire/base/random_id.h"
#include "gradwire/rpc/agent/graceful_shutdown.h"
#include "gradwire/rpc/agent/transports.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/store/init_method.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::rpc {
namespace {

constexpr absl::Duration kFlush = absl::Seconds(2);
constexpr absl::Duration kHastyFlush = absl::Milliseconds(200);

// A rank that is taken has one code, whether the init method finds it or the directory.
absl::StatusOr<store::Rendezvous> as_in_the_directory(absl::StatusOr<store::Rendezvous> found) {
  if (!absl::IsAlreadyExists(found.status())) return found;
  return absl::InvalidArgumentError(found.status().message());
}

}  // namespace

AgentImpl::AgentImpl(ReferenceHost& agent, RpcBackendOptions options) : agent_(agent) {
  runtime.agent = agent.weak_agent();
  runtime.options = std::move(options);
}

// Extensions use the other parts.
AgentImpl::~AgentImpl() { runtime.extensions.clear(); }

absl::Status AgentImpl::start(const std::string& name, int rank, int size) {
  GRADWIRE_RETURN_IF_ERROR(Registry::instance().conflicts());
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", name));
  runtime.self = {name, rank, random_id()};
  ThreadPool::Options threads;
  threads.num_threads = runtime.options.num_worker_threads;
  threads.max_threads = std::max(runtime.options.max_worker_threads, runtime.options.num_worker_threads);
  threads.name = name;
  if (runtime.options.num_worker_threads < 1)
    return absl::InvalidArgumentError("num_worker_threads must be at least 1");
  if (runtime.options.rpc_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("rpc_timeout must be positive, got ",
                                                   absl::FormatDuration(runtime.options.rpc_timeout),
                                                   "; absl::InfiniteDuration() is no limit"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(runtime.loop, transport::EventLoop::create());
  threads.poller = runtime.loop;
  threads.wait = runtime.options.wait;
  runtime.executor = std::make_shared<ThreadPool>(threads);
  runtime.timers = std::make_unique<TimerQueue>();
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<transport::Transport>> transports,
                            make_transports(runtime.options, runtime.loop));
  const HeartbeatOptions& heartbeat = runtime.options.heartbeat;
  if (heartbeat.interval <= absl::ZeroDuration() || heartbeat.suspect_after < 3 * heartbeat.interval ||
      heartbeat.dead_after < heartbeat.suspect_after) {
    return absl::InvalidArgumentError(
        "heartbeat: suspect_after must be at least three times the interval, and dead_after no less than "
        "that");
  }
  peers = std::make_unique<Peers>(
      std::move(transports), *this, *runtime.timers,
      Peers::Options{runtime.executor, runtime.options.connect_timeout, heartbeat, runtime.options.limits});
  rrefs = std::make_shared<RRefService>(agent_, *peers);
  caller = std::make_unique<Caller>(runtime, *peers, *rrefs);
  server = std::make_unique<Server>(runtime, *rrefs);
  membership = std::make_unique<Membership>(runtime, *peers, rrefs->driver());

  absl::Status joined = [&]() -> absl::Status {
    std::shared_ptr<store::Store> store = runtime.options.store;
    if (store == nullptr) {
      // Under a name, as process groups do: both may be at one address, and share the store that is hosted
      // there.
      GRADWIRE_ASSIGN_OR_RETURN(store::Rendezvous found,
                                as_in_the_directory(store::rendezvous(
                                    runtime.options.init_method, rank, size,
                                    {.timeout = runtime.options.join_timeout, .group_name = "rpc"})));
      store = found.store;
      rank = found.rank;
      size = found.world_size;
    }
    if (size < 0)
      return absl::InvalidArgumentError(absl::StrCat("the world size must not be negative, got ", size));
    if (size > 0 && (rank < 0 || rank >= size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " of \"", name, "\" is not in [0, ", size, ")"));
    }
    GRADWIRE_RETURN_IF_ERROR(
        membership->join(std::make_shared<store::PrefixStore>("rpc", store), rank, size));
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

absl::Status AgentImpl::connect_to_all() {
  const absl::Time deadline = Clock::system().now() + runtime.options.join_timeout;
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

void AgentImpl::on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) {
  server->on_request(from, link, std::move(envelope), std::move(buffers));
}

void AgentImpl::on_response(const Worker& from, EnvelopePtr envelope,
                            std::vector<transport::Buffer> buffers) {
  caller->answer(from, std::move(envelope), std::move(buffers));
}

void AgentImpl::on_cancel(const Worker& from, uint64_t link, uint64_t call_id) {
  server->calls().cancel(from, link, call_id,
                         absl::CancelledError(absl::StrCat("worker \"", from.name, "\" gave up")));
}

void AgentImpl::on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  const absl::Status gone =
      absl::CancelledError(absl::StrCat("worker \"", peer.name, "\" is gone: ", reason.message()));
  server->calls().cancel_link(link.number(), gone, /*caller_is_lost=*/!peers->status(peer).ok());
  caller->link_closed(peer, link, reason);
}

void AgentImpl::on_link_restored(const Worker& peer) { rrefs->driver().link_restored(peer); }

void AgentImpl::on_settled(const Worker& peer) { rrefs->driver().settled(peer); }

void AgentImpl::on_worker_state(const Worker& peer, WorkerState state) {
  membership->changes().notify(peer.info(), state);
}

void AgentImpl::on_unresponsive(const Worker& peer, const absl::Status& reason) {
  membership->worker_unresponsive(peer, reason);
}

void AgentImpl::on_worker_lost(const Worker& peer, WorkerState state, const absl::Status& reason) {
  log(LogLevel::kInfo, "worker \"", runtime.self.name, "\" lost worker \"", peer.name,
      "\": ", reason.message());
  server->calls().worker_lost(peer, reason);
  if (!membership->ending()) rrefs->driver().lose(peer.incarnation, reason);
  for (const auto& extension : runtime.extensions) extension->worker_lost(peer, reason);
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
  // This also ends a graceful shutdown that somebody else waits in.
  if (!graceful || membership->directory() == nullptr) return stop(reason, kHastyFlush);
  const absl::Time deadline =
      timeout == absl::InfiniteDuration() ? absl::InfiniteFuture() : Clock::system().now() + timeout;
  // Whoever comes second returns with the first.
  absl::Status status;
  std::call_once(ended_gracefully_, [&] {
    // Otherwise it has ended already, not gracefully.
    if (runtime.accepts_calls().ok()) {
      status = shut_down_gracefully({runtime, *peers, rrefs->driver(), *caller, server->calls(), *membership},
                                    deadline);
    }
    status.Update(stop(reason, kFlush));
  });
  return status;
}

absl::Status AgentImpl::stop(const absl::Status& reason, absl::Duration flush) {
  absl::Status ended;
  std::call_once(stopped_, [&] {
    runtime.closed = true;
    log(LogLevel::kInfo, "worker \"", runtime.self.name, "\" shuts down: ", reason.message());
    const absl::Status closed = runtime.accepts_calls();
    server->calls().stop(reason);
    for (const auto& extension : runtime.extensions) extension->shutdown(closed);
    caller->end_all(closed);
    membership->stop(closed);
    peers->shutdown(reason, flush);
    rrefs->driver().shutdown(closed);
    ended = end_threads();
  });
  return ended;
}

void AgentImpl::join_threads() {
  // Handlers that run now find every call refused and every wait ended, so the pool drains.
  runtime.executor->shutdown();
  runtime.timers->shutdown();
  runtime.loop->post([loop = runtime.loop.get()] { loop->end_in_loop(); });
  runtime.loop->run_until([this] { return runtime.loop->ended(); });
}

// Handlers run on the threads, and a handler may ignore that its call was cancelled: whoever shuts down does
// not wait for it indefinitely.
absl::Status AgentImpl::end_threads() {
  std::shared_ptr<Agent> keep = runtime.agent.lock();
  const absl::Duration timeout = runtime.options.handler_timeout;
  if (keep == nullptr || timeout == absl::InfiniteDuration()) {
    join_threads();
    return absl::OkStatus();
  }
  std::promise<void> promise;
  const std::future<void> joined = promise.get_future();
  // It keeps the agent, which its handlers need, for as long as they run.
  std::thread joiner([this, keep = std::move(keep), promise = std::move(promise)]() mutable {
    join_threads();
    promise.set_value();
  });
  if (joined.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready) {
    joiner.join();
    return absl::OkStatus();
  }
  joiner.detach();
  std::set<std::string> callees;
  for (const ServedCalls::UnderWay& call : server->calls().calls_under_way()) {
    callees.insert(absl::StrCat("\"", call.callee, "\""));
  }
  absl::Status left = absl::DeadlineExceededError(
      absl::StrCat("handlers of worker \"", runtime.self.name, "\" still run ", absl::FormatDuration(timeout),
                   " after its shutdown has cancelled their calls, and their threads are left behind: ",
                   absl::StrJoin(callees, ", "), "; let them look at CallContext::current()->cancelled()"));
  log(LogLevel::kError, left.message());
  return left;
}

}  // namespace gradwire::rpc
