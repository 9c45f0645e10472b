#include "rpc/agent_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random_id.h"
#include "rpc/codec_containers.h"
#include "rpc/registry.h"
#include "store/init_method.h"
#include "store/prefix_store.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace gradwire::rpc {

AgentImpl::AgentImpl(Agent& agent_in, RpcBackendOptions options_in)
    : agent(agent_in), options(std::move(options_in)) {}

AgentImpl::~AgentImpl() = default;

absl::Status AgentImpl::start(const std::string& name, int rank, int size) {
  GRADWIRE_RETURN_IF_ERROR(Registry::instance().conflicts());
  if (name.empty()) return absl::InvalidArgumentError("a worker needs a name");
  for (const std::string& transport : options.transports) {
    if (transport != "tcp") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown transport \"", transport, "\"; there is \"tcp\""));
    }
  }
  self = {name, rank, random_id()};
  ThreadPool::Options threads;
  threads.num_threads = options.num_worker_threads;
  threads.max_threads = std::max(options.max_worker_threads, options.num_worker_threads);
  threads.name = name;
  if (options.num_worker_threads < 1)
    return absl::InvalidArgumentError("num_worker_threads must be at least 1");
  GRADWIRE_ASSIGN_OR_RETURN(loop, transport::EventLoop::create());
  threads.poller = loop;
  threads.wait = options.wait;
  executor = std::make_shared<ThreadPool>(threads);
  timers = std::make_unique<TimerQueue>();
  std::vector<std::unique_ptr<transport::Transport>> transports;
  transports.push_back(transport::make_loopback_transport({}, loop));
  transports.push_back(transport::make_tcp_transport({.limits = options.limits}, loop));
  peers = std::make_unique<Peers>(std::move(transports), *this, *timers, options.connect_timeout);
  rrefs = std::make_shared<RRefService>(agent);
  server = std::make_unique<Server>(agent, *peers, *rrefs, executor);

  absl::Status joined = [&]() -> absl::Status {
    std::shared_ptr<store::Store> store = options.store;
    if (store == nullptr) {
      GRADWIRE_ASSIGN_OR_RETURN(
          store::Rendezvous found,
          store::rendezvous(options.init_method, rank, size, {.timeout = options.join_timeout}));
      store = found.store;
      rank = found.rank;
      size = found.world_size;
    }
    if (size < 1)
      return absl::InvalidArgumentError(absl::StrCat("the world size must be at least 1, got ", size));
    if (rank < 0 || rank >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " of \"", name, "\" is not in [0, ", size, ")"));
    }
    self.id = rank;
    world_size = size;
    directory = std::make_unique<Directory>(std::make_shared<store::PrefixStore>("rpc", store));
    GRADWIRE_ASSIGN_OR_RETURN(proto::WorkerRecord record, peers->listen(self));
    GRADWIRE_ASSIGN_OR_RETURN(std::vector<WorkerAddress> members,
                              directory->join(self, world_size, record, options.join_timeout));
    peers->set_workers(members);
    if (options.connect_at_init) GRADWIRE_RETURN_IF_ERROR(connect_to_all());
    return absl::OkStatus();
  }();
  if (!joined.ok()) stop(joined, absl::ZeroDuration());
  return joined;
}

absl::Status AgentImpl::connect_to_all() {
  const absl::Time deadline = Clock::system().now() + options.join_timeout;
  std::vector<std::pair<Worker, Future<ServiceReply>>> pings;
  for (const Worker& worker : peers->workers()) {
    pings.emplace_back(worker, agent.call_service(worker, kPing, "", nullptr, {deadline, /*repeat=*/true}));
  }
  for (auto& [worker, ping] : pings) {
    if (absl::Status status = ping.result().status(); !status.ok()) {
      return with_context(status, absl::StrCat("connecting to worker \"", worker.name, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status AgentImpl::accepts_calls() const {
  MutexLock lock(mutex_);
  return closed_;
}

uint64_t AgentImpl::send(const Worker& to, proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                         std::string callee, absl::Time deadline, absl::Duration timeout,
                         absl::AnyInvocable<void(absl::StatusOr<Answer>)> done) {
  const uint64_t id = pending.next_id();
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  const absl::Time now = Clock::system().now();
  if (deadline != absl::InfiniteFuture()) {
    // Never 0, which would mean no deadline.
    request.set_timeout_us(std::max<int64_t>(1, absl::ToInt64Microseconds(deadline - now)));
  }
  PendingCall call;
  call.to = to;
  call.callee = std::move(callee);
  call.started = now;
  call.borrows = std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
  call.done = std::move(done);
  calls_made.fetch_add(1, std::memory_order_relaxed);
  const std::string what = call.callee;
  pending.add(id, std::move(call));
  if (absl::Status open = accepts_calls(); !open.ok()) {
    if (auto taken = pending.take(id)) complete(*std::move(taken), open);
    return id;
  }
  if (deadline != absl::InfiniteFuture()) {
    const uint64_t timer = timers->schedule(deadline, [this, id, to, what, timeout] {
      cancel(id, with_worker(absl::DeadlineExceededError(absl::StrCat("\"", what, "\" on worker \"", to.name,
                                                                      "\" gave no answer within ",
                                                                      absl::FormatDuration(timeout))),
                             to.name));
    });
    pending.set_timer(id, timer);
  }
  absl::StatusOr<Peers::Receipt> receipt = peers->send(to, envelope, std::move(buffers));
  if (!receipt.ok()) {
    if (auto taken = pending.take(id)) complete(*std::move(taken), with_worker(receipt.status(), to.name));
    return id;
  }
  if (!pending.set_sent(id, receipt->link, receipt->ticket)) {
    // It ended while it was being sent: whoever ended it could not tell the callee, nor give the caller's
    // memory back. An answer may have come, too: then the callee finds nothing to cancel.
    retract(receipt->link, receipt->ticket, id);
    return id;
  }
  // The link may have closed before the call knew which one it was on.
  if (absl::Status alive = peers->link_status(receipt->link); !alive.ok()) {
    if (auto taken = pending.take(id)) {
      complete(
          *std::move(taken),
          with_worker(absl::UnavailableError(absl::StrCat("the connection to worker \"", to.name,
                                                          "\" broke while \"", what, "\" was under way")),
                      to.name));
    }
  }
  return id;
}

void AgentImpl::complete(PendingCall call, absl::StatusOr<Answer> answer) {
  if (call.timer != 0) timers->cancel(call.timer);
  // The caller's tensors are his own again when he hears of the end, however it came about.
  if (call.borrows && call.link != 0) peers->capture({call.link, call.ticket});
  if (answer.ok()) {
    latencies.record(Clock::system().now() - call.started);
  } else {
    calls_failed.fetch_add(1, std::memory_order_relaxed);
  }
  call.done(std::move(answer));
  call.done = nullptr;
  pending.finished();
}

void AgentImpl::retract(uint64_t link, uint64_t ticket, uint64_t id) {
  proto::Envelope envelope;
  envelope.mutable_cancel()->set_call_id(id);
  (void)peers->reply(link, envelope, {});
  peers->capture({link, ticket});
}

void AgentImpl::cancel(uint64_t id, absl::Status reason) {
  auto call = pending.take(id);
  if (!call) return;
  if (call->link != 0) retract(call->link, call->ticket, id);
  complete(*std::move(call), std::move(reason));
}

void AgentImpl::on_request(const Worker& from, uint64_t link, proto::Envelope envelope,
                           std::vector<transport::Buffer> buffers) {
  server->on_request(from, link, std::move(envelope), std::move(buffers));
}

void AgentImpl::on_response(const Worker& from, proto::Envelope envelope,
                            std::vector<transport::Buffer> buffers) {
  proto::Response& response = *envelope.mutable_response();
  auto call = pending.take_from(response.call_id(), from.incarnation);
  if (!call) {
    late_answers.fetch_add(1, std::memory_order_relaxed);
    // Taking the references and dropping them gives them back.
    (void)rrefs->receive(response.result(), from);
    return;
  }
  absl::Status status = status_from_proto(response.status());
  if (!status.ok()) {
    complete(*std::move(call), with_worker(std::move(status), from.name));
    return;
  }
  complete(*std::move(call), Answer{std::move(response), std::move(buffers)});
}

void AgentImpl::on_cancel(const Worker& from, uint64_t link, uint64_t call_id) {
  server->cancel(link, call_id, absl::CancelledError(absl::StrCat("worker \"", from.name, "\" gave up")));
}

void AgentImpl::on_link_closed(const Worker& peer, uint64_t link, const absl::Status& reason) {
  server->cancel_link(
      link, absl::CancelledError(absl::StrCat("worker \"", peer.name, "\" is gone: ", reason.message())));
  for (PendingCall& call : pending.take_link(link)) {
    const std::string text =
        absl::StrCat("worker \"", peer.name, "\" could not be reached, or went away, while \"", call.callee,
                     "\" was under way: ", reason.message());
    complete(std::move(call), with_worker(absl::UnavailableError(text), peer.name));
  }
}

void AgentImpl::on_worker_lost(const Worker& peer, const absl::Status& reason) {
  log(LogLevel::kInfo, "worker \"", self.name, "\" lost worker \"", peer.name, "\": ", reason.message());
  rrefs->worker_lost(peer, reason);
  for (const auto& extension : extensions) extension->worker_lost(peer, reason);
}

bool AgentImpl::idle() const {
  if (pending.unfinished() > 0 || server->under_way() > 0 || rrefs->messages_under_way() > 0) return false;
  // Continuations of calls, and destructors of values, may call.
  if (executor->pending() > 0) return false;
  for (const auto& extension : extensions) {
    if (!extension->idle()) return false;
  }
  return true;
}

}  // namespace gradwire::rpc
