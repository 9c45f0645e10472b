#include "gradwire/rpc/agent/agent_impl.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/name.h"
#include "gradwire/base/random_id.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent/transports.h"
#include "gradwire/rpc/callee/registry.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/store/init_method.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::rpc {
namespace {

bool any_requires_grad(const proto::Payload& payload) {
  return std::any_of(payload.tensors().begin(), payload.tensors().end(),
                     [](const proto::Tensor& tensor) { return tensor.requires_grad(); });
}

// A rank that is taken has one code, whether the init method finds it or the directory.
absl::StatusOr<store::Rendezvous> as_in_the_directory(absl::StatusOr<store::Rendezvous> found) {
  if (!absl::IsAlreadyExists(found.status())) return found;
  return absl::InvalidArgumentError(found.status().message());
}

}  // namespace

AgentImpl::AgentImpl(Agent& agent_in, RpcBackendOptions options_in)
    : agent(agent_in), options(std::move(options_in)), flow_bounds(options.flow) {}

AgentImpl::~AgentImpl() = default;

absl::Status AgentImpl::start(const std::string& name, int rank, int size) {
  GRADWIRE_RETURN_IF_ERROR(Registry::instance().conflicts());
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", name));
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
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<transport::Transport>> transports,
                            make_transports(options, loop));
  const HeartbeatOptions& heartbeat = options.heartbeat;
  if (heartbeat.interval <= absl::ZeroDuration() || heartbeat.suspect_after < 3 * heartbeat.interval ||
      heartbeat.dead_after < heartbeat.suspect_after) {
    return absl::InvalidArgumentError(
        "heartbeat: suspect_after must be at least three times the interval, and dead_after no less than "
        "that");
  }
  changes = std::make_unique<WorkerChanges>(executor);
  peers =
      std::make_unique<Peers>(std::move(transports), *this, *timers,
                              Peers::Options{executor, options.connect_timeout, heartbeat, options.limits});
  rrefs = std::make_shared<RRefService>(agent, *peers);
  server = std::make_unique<Server>(agent, *rrefs, executor, options.retry);

  absl::Status joined = [&]() -> absl::Status {
    std::shared_ptr<store::Store> store = options.store;
    if (store == nullptr) {
      // Under a name, as process groups do: both may be at one address, and share the store that is hosted there.
      GRADWIRE_ASSIGN_OR_RETURN(
          store::Rendezvous found,
          as_in_the_directory(store::rendezvous(options.init_method, rank, size,
                                                {.timeout = options.join_timeout, .group_name = "rpc"})));
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
    GRADWIRE_RETURN_IF_ERROR(join(std::make_shared<store::PrefixStore>("rpc", store), rank, size));
    if (options.connect_at_init) GRADWIRE_RETURN_IF_ERROR(connect_to_all());
    return absl::OkStatus();
  }();
  if (!joined.ok()) {
    stop(joined, absl::ZeroDuration());
    return joined;
  }
  const std::size_t members = peers->live_workers().size();
  log(LogLevel::kInfo, "worker \"", name, "\" (id ", self.id, ") joined the group: ", members,
      members == 1 ? " member" : " members");
  return absl::OkStatus();
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
  if (!closed_.load(std::memory_order_acquire)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("worker \"", self.name, "\" has been shut down"));
}

absl::StatusOr<std::shared_ptr<Link>> AgentImpl::link_to(const std::shared_ptr<Peer>& peer) const {
  GRADWIRE_RETURN_IF_ERROR(accepts_calls());
  return peers->link_to(peer);
}

void AgentImpl::add_pending(uint64_t id, PendingCalls::Taken call) {
  if (absl::Time alarm = pending.add(id, std::move(call)); alarm != absl::InfiniteFuture()) {
    timers->schedule(alarm, [this, alarm] { expire(alarm); });
  }
}

void AgentImpl::send(uint64_t id, proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                     bool borrow, PendingCalls::Taken call) {
  proto::Request& request = *envelope.mutable_request();
  request.set_call_id(id);
  if (call->deadline != absl::InfiniteFuture()) {
    // Never 0, which would mean no deadline.
    request.set_timeout_us(std::max<int64_t>(1, absl::ToInt64Microseconds(call->deadline - call->leaves)));
  }
  calls_made.fetch_add(1, std::memory_order_relaxed);
  const bool borrows = any_borrowed(buffers);
  call->borrows = borrow && borrows;
  const std::shared_ptr<Peer> peer = call->peer;
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) {
    pending.refused();
    rrefs->undo(request.arguments(), peer->worker);
    complete(std::move(call), with_worker(link.status(), peer->worker.name));
    return;
  }
  call->link = *link;
  add_pending(id, std::move(call));
  absl::StatusOr<uint64_t> ticket = (*link)->send(envelope, std::move(buffers));
  if (ticket.ok()) rrefs->sent(request.arguments(), peer->worker, (*link)->closed());
  if (ticket.ok() && borrows && !borrow) (*link)->capture(*ticket);
  if (!ticket.ok()) {
    rrefs->undo(request.arguments(), peer->worker);
    if (PendingCalls::Taken taken = pending.take(id)) {
      const std::string text =
          absl::StrCat("sending to worker \"", peer->worker.name, "\": ", ticket.status().message());
      complete(std::move(taken), with_worker(absl::Status(ticket.status().code(), text), peer->worker.name));
    }
    return;
  }
  if (PendingCalls::Taken given_up = pending.sent(id, *ticket)) {
    absl::Status reason = given_up->given_up;
    retract(id, std::move(given_up), std::move(reason));
  } else if (borrow && borrows && !pending.contains(id)) {
    // It ended before it could be known what there was to capture.
    (*link)->capture(*ticket);
  }
}

void AgentImpl::complete(PendingCalls::Taken call, absl::StatusOr<Answer> answer) {
  // The caller's tensors are his own again when he hears of the end, however it came about.
  if (call->borrows && call->link != nullptr) call->link->capture(call->ticket);
  // Before he hears of it, so that his next call finds the place free.
  call->credit.give_back();
  if (call->repeatable != nullptr) request_ids.end(call->incarnation, call->repeatable->id);
  if (answer.ok()) {
    latencies.record(Clock::system().now() - call->started);
  } else {
    calls_failed.fetch_add(1, std::memory_order_relaxed);
  }
  if (call->answered) {
    call->answered(std::move(answer));
  } else if (answer.ok()) {
    call->done(unpack(*call, *std::move(answer)));
  } else {
    call->references = nullptr;
    call->done(answer.status());
  }
  call = nullptr;
  pending.finished();
}

absl::StatusOr<IncomingPayload> AgentImpl::unpack(PendingCall& call, Answer answer) {
  IncomingPayload in;
  in.payload = {answer.envelope, &answer.response().result()};
  auto received = rrefs->receive(*in.payload, call.peer->worker);
  // Only now: a reference that came back to its sender must not have gone meanwhile.
  call.references = nullptr;
  if (!received.ok()) return received.status();
  in.references = *std::move(received);
  if (in.payload->tensors_size() > 0) {
    if (tensor_backend() == nullptr) {
      return absl::InvalidArgumentError(
          "the answer holds a tensor, but this program was linked without libtorch");
    }
    GRADWIRE_ASSIGN_OR_RETURN(in.tensors, tensor_backend()->decode(*in.payload, std::move(answer.buffers)));
  }
  const bool concerns_graph = in.payload->has_graph() || any_requires_grad(*in.payload);
  if (concerns_graph && graph_hook != nullptr) {
    GRADWIRE_RETURN_IF_ERROR(graph_hook->incoming_answer(call.peer->worker, in.tensors.get(), *in.payload));
  }
  return in;
}

void AgentImpl::retract(uint64_t id, PendingCalls::Taken call, absl::Status reason) {
  if (call->link != nullptr) {
    EnvelopeBox envelope;
    envelope->mutable_cancel()->set_call_id(id);
    (void)call->link->send(*envelope, {});
  } else {
    cancel_later(*call, id);
  }
  complete(std::move(call), std::move(reason));
}

void AgentImpl::cancel(uint64_t id, absl::Status reason) {
  if (PendingCalls::Taken call = pending.give_up(id, reason)) retract(id, std::move(call), std::move(reason));
}

void AgentImpl::expire(absl::Time alarm) {
  PendingCalls::Expired expired = pending.take_expired(alarm, Clock::system().now());
  if (expired.next != absl::InfiniteFuture()) {
    timers->schedule(expired.next, [this, next = expired.next] { expire(next); });
  }
  for (auto& [id, call] : expired.calls) {
    const std::string& name = call->peer->worker.name;
    absl::Status reason = with_worker(absl::DeadlineExceededError(absl::StrCat(
                                          "\"", call->callee, "\" on worker \"", name,
                                          "\" gave no answer within ", absl::FormatDuration(call->timeout))),
                                      name);
    retract(id, std::move(call), std::move(reason));
  }
}

void AgentImpl::on_request(const Worker& from, const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                           std::vector<transport::Buffer> buffers) {
  server->on_request(from, link, std::move(envelope), std::move(buffers));
}

void AgentImpl::on_response(const Worker& from, EnvelopePtr envelope,
                            std::vector<transport::Buffer> buffers) {
  const proto::Response& response = (*envelope)->response();
  PendingCalls::Taken call = pending.take_from(response.call_id(), from.incarnation);
  if (call == nullptr) {
    late_answers.fetch_add(1, std::memory_order_relaxed);
    // Taking the references and dropping them gives them back.
    (void)rrefs->receive(response.result(), from);
    return;
  }
  if (response.has_status()) {
    absl::Status status = status_from_proto(response.status());
    if (!status.ok()) {
      complete(std::move(call), with_worker(std::move(status), from.name));
      return;
    }
  }
  complete(std::move(call), Answer{std::move(envelope), std::move(buffers)});
}

void AgentImpl::on_cancel(const Worker& from, uint64_t link, uint64_t call_id) {
  server->cancel(from, link, call_id,
                 absl::CancelledError(absl::StrCat("worker \"", from.name, "\" gave up")));
}

void AgentImpl::on_link_closed(const Worker& peer, const Link& link, const absl::Status& reason) {
  const absl::Status gone =
      absl::CancelledError(absl::StrCat("worker \"", peer.name, "\" is gone: ", reason.message()));
  server->cancel_link(link.number(), gone, /*caller_is_lost=*/!peers->status(peer).ok());
  PendingCalls::Broken broken = pending.take_link(link);
  for (PendingCalls::Taken& call : broken.calls) {
    const std::string text =
        absl::StrCat("worker \"", peer.name, "\" could not be reached, or went away, while \"", call->callee,
                     "\" was under way: ", reason.message());
    complete(std::move(call), with_worker(absl::UnavailableError(text), peer.name));
  }
  for (const uint64_t id : broken.repeatable) interrupted(id, absl::UnavailableError(reason.message()));
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
