#include "gradwire/rpc/link/link.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/peers.h"

namespace gradwire::rpc {
namespace {

// Returns how many of the first `end` bytes that a connection was given are unsent. Messages leave in the
// order in which they were sent, so that the connection has sent what it was given, except for its queue.
// `given` must be read before `queued`: bytes that are given to the connection between the two reads make
// the result too large, but not too small. So does what the transport adds to the messages in its queue.
uint64_t unsent_before(uint64_t end, uint64_t given, uint64_t queued) {
  return end - std::min(end, given - std::min(given, queued));
}

}  // namespace

void own_bytes(std::vector<transport::Buffer>& buffers) {
  for (transport::Buffer& buffer : buffers) {
    if (buffer.sharing() != transport::Buffer::Sharing::kBorrowed) continue;
    auto bytes = std::make_shared<std::vector<char>>(buffer.size());
    std::memcpy(bytes->data(), buffer.data(), buffer.size());
    buffer = transport::Buffer(bytes->data(), buffer.size(), bytes);
  }
}

absl::StatusOr<uint64_t> LinkSender::send(const proto::Envelope& envelope,
                                          std::vector<transport::Buffer> buffers,
                                          const proto::Request* answered) {
  absl::StatusOr<uint64_t> ticket =
      send_now(envelope.SerializeAsString(), std::move(buffers), {&envelope, answered});
  // A relaxed load may miss a message that another thread has just deferred. Its timer sends it.
  if (has_deferred_.load(std::memory_order_relaxed)) flush_deferred();
  return ticket;
}

absl::StatusOr<uint64_t> LinkSender::send_encoded(proto::Envelope& envelope, EncodedTensors&& tensors,
                                                  const proto::Request* answered) {
  if (tensors.handed_over != nullptr) keep(std::move(tensors.handed_over));
  const std::shared_ptr<SentAhead> ahead = std::move(tensors.ahead);
  if (ahead != nullptr) envelope.set_parts(ahead->join(number_, tensors.buffers));
  // `ahead` lives until the message has been sent.
  return send(envelope, std::move(tensors.buffers), answered);
}

bool LinkSender::count_part(const PartsInFlight::Size& part, bool begins) {
  MutexLock lock(parts_mutex_);
  return parts_in_flight_.add(part, begins);
}

void LinkSender::forget_parts(const PartsInFlight::Size& message) {
  MutexLock lock(parts_mutex_);
  parts_in_flight_.remove(message);
}

void LinkSender::keep(std::shared_ptr<HandedOver> handed_over) {
  // Destroyed without the lock.
  std::vector<std::shared_ptr<HandedOver>> taken;
  MutexLock lock(handed_over_mutex_);
  // on_closed() may have come already. Then the message is not sent either.
  if (closed_) return;
  handed_over_.push_back(std::move(handed_over));
  if (handed_over_.size() < sweep_at_) return;
  const auto first_taken = std::partition(handed_over_.begin(), handed_over_.end(),
                                          [](const auto& entry) { return !entry->taken(); });
  taken.assign(std::make_move_iterator(first_taken), std::make_move_iterator(handed_over_.end()));
  handed_over_.erase(first_taken, handed_over_.end());
  sweep_at_ = std::max<std::size_t>(8, 2 * handed_over_.size());
}

std::vector<std::shared_ptr<HandedOver>> LinkSender::drop_handed_over() {
  MutexLock lock(handed_over_mutex_);
  return std::exchange(handed_over_, {});
}

void LinkSender::send_deferred(const proto::Envelope& envelope) {
  MutexLock lock(deferred_mutex_);
  deferred_.push_back(envelope.SerializeAsString());
  has_deferred_.store(true, std::memory_order_relaxed);
  if (timer_scheduled_) return;
  timers_.schedule(timers_.clock().now() + kDeferral, [weak = weak_from_this()] {
    std::shared_ptr<LinkSender> link = weak.lock();
    if (link == nullptr) return;
    {
      MutexLock lock(link->deferred_mutex_);
      // Cleared before the flush: a message that is deferred after this point starts a timer of its own, so
      // none stays behind.
      link->timer_scheduled_ = false;
    }
    link->flush_deferred();
  });
  timer_scheduled_ = true;
}

void LinkSender::flush_deferred() noexcept {
  std::vector<std::string> deferred;
  {
    MutexLock lock(deferred_mutex_);
    deferred.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  // Errors of the link are ignored, because a deferred message may be lost with it. But the callers of those
  // that have no memory now wait for them on a link that goes on. So it ends.
  for (std::string& header : deferred) {
    if (!run_contained("a deferred message", [&] { (void)send_now(std::move(header), {}, {}); }))
      cut(no_memory());
  }
}

absl::StatusOr<uint64_t> LinkSender::send_now(std::string&& header, std::vector<transport::Buffer>&& buffers,
                                              const About& about) {
  wait_until_opened();
  transport::Message message{std::move(header), std::move(buffers)};
  const std::size_t size = message.byte_size();
  absl::StatusOr<uint64_t> ticket = depart(std::move(message));
  if (ticket.ok()) {
    bytes_sent_.fetch_add(size, std::memory_order_relaxed);
    unread_bound_.fetch_add(size, std::memory_order_relaxed);
    const uint64_t end = link_bytes_.fetch_add(size, std::memory_order_relaxed) + size;
    if (!sent_.load(std::memory_order_relaxed)) sent_.store(true, std::memory_order_relaxed);
    if (transfers_->watches(size) && about.envelope != nullptr) {
      // The message has been sent, also if it cannot be watched.
      run_contained("watching a large message", [&] {
        Sending sending{[weak = weak_from_this(), end]() -> std::optional<uint64_t> {
                          const std::shared_ptr<LinkSender> link = weak.lock();
                          if (link == nullptr || link->closed()) return std::nullopt;
                          const uint64_t given = link->link_bytes_.load(std::memory_order_acquire);
                          return unsent_before(end, given, link->connection_->queued_bytes());
                        },
                        connection_->counts_whole_buffers()};
        watch_sending(*transfers_, {peer_name_, number_, size}, *about.envelope, about.answered,
                      std::move(sending));
      });
    }
  }
  return ticket;
}

// The question to the connection takes a lock. So it is not asked for each call, but after each kUnreadGrain
// bytes. A message that another thread sends between the question and the store may be missing in the bound.
// The next question counts it.
uint64_t LinkSender::unread_bytes() {
  const uint64_t bound = unread_bound_.load(std::memory_order_relaxed);
  if (bound < kUnreadGrain) return 0;
  wait_until_opened();
  const uint64_t unread = connection_->queued_bytes();
  unread_bound_.store(unread, std::memory_order_relaxed);
  return unread < kUnreadGrain ? 0 : unread;
}

absl::StatusOr<uint64_t> LinkSender::depart(transport::Message&& message) {
  // Counted before it is sent: a thread that reports the Departures after the send must not leave it out.
  departed_.fetch_add(1);
  // A report in between may count this message. If the connection is closed, its end settles the report, else
  // the next message does.
  absl::Cleanup not_sent = [this] { departed_.fetch_sub(1); };
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  if (ticket.ok()) std::move(not_sent).Cancel();
  return ticket;
}

absl::StatusOr<transport::Buffer> LinkSender::allocate(std::size_t size) {
  wait_until_opened();
  return connection_->allocate(size);
}

// A heartbeat is not counted as sent data: it does not set sent_, which would suppress the next heartbeat.
void LinkSender::beat(const std::string& heartbeat, bool forced) {
  // A message that was sent since the last heartbeat was a sign of life, too.
  if (!sent_.exchange(false) || forced) (void)depart({heartbeat, {}});
}

void LinkSender::cut(const absl::Status& reason) noexcept {
  run_contained("the end of a link", [&] {
    wait_until_opened();
    connection_->close(reason, absl::ZeroDuration());
  });
}

void LinkSender::part(std::string goodbye, const absl::Status& reason, absl::Duration flush) {
  wait_until_opened();
  // Not counted by depart(): Arrivals counts neither Hello nor Goodbye.
  run_contained("a goodbye", [&] { (void)connection_->send({std::move(goodbye), {}}); });
  connection_->close(reason, flush);
}

// The way of an arriving message:
//   1. on_message() checks its size and parses it.
//   2. If the peer has introduced itself and nothing is held, active_ is set, and deliver() passes the
//      message to the sink without a lock.
//   3. Otherwise handle() asks the Handshake, under the lock: deliver, admit, part, refuse, or hold.
//   4. release() handles held messages later, on the thread that changed the view of the group, or on the
//      timers' thread.
// The order of messages is kept as follows. active_ becomes nullptr before the first message is held, and is
// set again only when no message is held, both under the lock. So no message takes the path of step 2 while
// another one waits.

using Action = Handshake::Action;

namespace {

absl::StatusOr<EnvelopePtr> parse_envelope(const std::string& header, const transport::Connection& from) {
  EnvelopePtr envelope = make_envelope();
  envelope->set_wire_bytes(header.size());
  if ((*envelope)->ParseFromString(header)) return envelope;
  absl::Status reason = absl::InvalidArgumentError(absl::StrCat(
      "cannot parse a message from ", from.peer_address(), ": the peer may not be a Gradwire worker"));
  log(LogLevel::kWarning, reason.message());
  return reason;
}

// Whether an incoming connection proves that its transport reaches the peer's listener: true within one host,
// and for a connection that comes from the host where the peer listens.
bool proves_reachable(const std::string& transport, const transport::Connection& connection,
                      const Peer& peer) {
  if (transport == "shm") return true;
  const std::string from = connection.peer_address();
  const std::string host = from.substr(0, from.rfind(':'));
  for (const proto::Address& address : peer.record.addresses()) {
    if (address.transport() == transport && !host.empty() && absl::StrContains(address.address(), host))
      return true;
  }
  return false;
}

}  // namespace

Link::Link(Context& context, uint64_t number, std::shared_ptr<Peer> peer, std::string transport)
    : LinkSender(context.timers, context.bytes_sent, number, context.transfers,
                 peer == nullptr ? "unknown" : peer->worker.name),
      context_(context),
      transport_(std::move(transport)),
      made_here_(peer != nullptr),
      handshake_(context.self, made_here_ ? std::make_optional(peer->worker) : std::nullopt),
      peer_(std::move(peer)),
      held_(context.limits, context.held_bytes) {}

// The transport may deliver messages, or the end of the connection, before this function has stored the
// connection. Both wait for opening_ (wait_until_opened). The steps:
//   1. Make the connection.
//   2. Enter it into the table of all links, so that a shutdown closes it.
//   3. Enter it into the peer's list, so that the loss of the worker closes it.
//   4. Send the Hello, which must be the first message.
//   5. Let new requests use the link.
// If the worker is lost or the agent shuts down between two steps, the next step fails, and the connection is
// closed.
absl::Status Link::connect(transport::Transport& transport, const std::string& address,
                           absl::Duration timeout) {
  const std::shared_ptr<Link> self = shared();
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer = peer_;
  }
  MutexLock opening(opening_);
  GRADWIRE_ASSIGN_OR_RETURN(connection_, transport.connect(address, self, timeout));
  absl::Status status;
  try {
    status = context_.host.on_made(self);
    if (status.ok()) status = peer->add(self);
    if (status.ok()) {
      introduce(*peer);
      status = peer->greeted(self);
    }
  } catch (...) {
    status = caught("opening a connection");
  }
  // This must be the last step: arriving messages and the end of the connection wait for it.
  opened_ = true;
  if (!status.ok()) connection_->close(status);
  return status;
}

void Link::accept(const std::shared_ptr<transport::Connection>& connection) {
  connection_ = connection;
  opened_ = true;
}

bool Link::introduced() const {
  MutexLock lock(mutex_);
  return handshake_.introduced() || handshake_.observed();
}

void Link::introduce(Peer& peer) {
  EnvelopeBox envelope;
  const uint64_t number = peer.number(*this);
  {
    MutexLock lock(mutex_);
    *envelope->mutable_hello() = handshake_.hello(number);
  }
  // If the send fails, on_closed() follows.
  (void)connection_->send({envelope->SerializeAsString(), {}});
}

void Link::on_message(transport::Connection& connection, transport::Message message) {
  receive(connection, std::move(message), absl::OkStatus());
}

// The header says which call the message belongs to. Only that call ends.
void Link::on_lost(transport::Connection& connection, std::string header, absl::Status reason) {
  receive(connection, {std::move(header), {}}, reason);
}

void Link::receive(transport::Connection& connection, transport::Message&& message,
                   const absl::Status& lost) {
  wait_until_opened();
  const std::size_t size = message.byte_size();
  count_read(size, context_.bytes_received);
  // Not every transport checks max_message_bytes() before it receives a message.
  if (const uint64_t limit = max_message_bytes(); size > limit) {
    absl::Status reason = absl::InvalidArgumentError(absl::StrCat(
        "a message from ", connection.peer_address(), ", which has not been admitted, is too large: got ",
        size, " bytes, expected at most ", limit));
    log(LogLevel::kWarning, reason.message());
    connection.close(reason);
    return;
  }
  // Pairs with the stores of active_ in admit() and release(): this thread sees the peer completely. The peer
  // cannot go meanwhile, because only this thread handles the end of the link.
  Peer* const peer = active_.load(std::memory_order_acquire);
  if (peer == nullptr && !lost.ok() && !introduced()) {
    connection.close(lost);
    return;
  }
  if (peer == nullptr && hold_unparsed(message)) return;
  absl::StatusOr<EnvelopePtr> parsed = parse_envelope(message.header, connection);
  if (!parsed.ok()) {
    connection.close(parsed.status());
    return;
  }
  EnvelopePtr envelope = *std::move(parsed);
  if (!lost.ok()) {
    log(LogLevel::kWarning, "dropped the buffers of a message from ", connection.peer_address(), ": ",
        lost.message());
    envelope->set_lost(lost);
  }
  if (!received_.load(std::memory_order_relaxed)) received_.store(true, std::memory_order_relaxed);
  // A message with references may name an owner that is not known yet, so the Handshake decides on it.
  if (peer != nullptr && references_of(**envelope).empty()) {
    if (deliver(*peer, envelope, message.buffers)) return;
  }
  handle(std::move(envelope), std::move(message.buffers));
}

// Messages behind a Hello that is held are not parsed, here either.
void Link::on_arriving(transport::Connection&, const std::string& header, uint64_t bytes, uint64_t arrived) {
  const Peer* const peer = transfers_->watches(bytes) ? active_.load(std::memory_order_acquire) : nullptr;
  if (peer == nullptr) return;
  watch_receiving(*transfers_, {peer->worker.name, number(), bytes}, header, {connection_, arrived},
                  [&](uint64_t call_id) { return context_.sink.callee_of(peer->worker, call_id); });
}

// The group may change between the first decision and wait_for_group(), and then no release() follows. So the
// link decides again after it has registered.
Handshake::Step Link::decide_locked(const proto::Envelope& envelope) {
  if (!handshake_.introduced()) handshake_.identify(connection_->peer());
  Handshake::Step step = handshake_.receive(envelope, context_.group);
  if (step.action == Action::kObserve) handshake_.observe();
  if (step.action != Action::kHold) return step;
  context_.host.wait_for_group(shared());
  return handshake_.receive(envelope, context_.group);
}

bool Link::hold_unparsed(transport::Message& message) {
  // Until the Hello is admitted, the other side may be anybody. So what follows is counted by its serialised
  // size, and is not parsed.
  Handshake::Step refused{Action::kRefuse, {}};
  {
    MutexLock lock(mutex_);
    if (handshake_.introduced() || !handshake_.holds()) return false;
    if (held_.push({nullptr, std::move(message.header), std::move(message.buffers)})) return true;
    refused.reason = held_.limit_error();
  }
  perform(refused, nullptr, nullptr, {});
  return true;
}

void Link::handle(EnvelopePtr envelope, std::vector<transport::Buffer> buffers) {
  Handshake::Step step;
  Peer* from = nullptr;
  {
    MutexLock lock(mutex_);
    if (context_.stopping) return;
    from = peer_.get();
    step = handshake_.holds() ? Handshake::Step{Action::kHold, {}} : decide_locked(**envelope);
    if (step.action == Action::kHold) {
      if (!handshake_.holds()) {
        // The first held message. From here on all messages take this path, and are queued behind it.
        handshake_.hold();
        active_ = nullptr;
        // The first message is a Hello of a worker that is not known yet. What follows is only held, so its
        // size is limited by what may be held.
        if (!handshake_.introduced()) max_message_bytes_ = context_.limits.max_held_bytes;
        limit_wait_locked();
      }
      if (held_.push({std::move(envelope), std::string(), std::move(buffers)})) return;
      step = {Action::kRefuse, held_.limit_error()};
    }
  }
  perform(step, from, std::move(envelope), std::move(buffers));
}

void Link::limit_wait_locked() {
  if (!handshake_.limit_wait()) return;
  // The timer does not keep the link. After the timeout the first held message is decided without a view of
  // the owners that it names.
  timers_.schedule(timers_.clock().now() + kStrangerTimeout, [weak = weak_from_this()] {
    const std::shared_ptr<Link> link = std::static_pointer_cast<Link>(weak.lock());
    if (link == nullptr) return;
    {
      MutexLock lock(link->mutex_);
      link->handshake_.on_wait_expired();
    }
    link->release();
  });
}

void Link::release() {
  // Messages that arrive meanwhile are queued behind the held ones, so that the order is kept. The loop ends
  // when no message is held, or when the first one must be held longer.
  while (true) {
    // Declared before the locks, and so destroyed after they are released.
    std::deque<HeldMessage> dropped;
    HeldMessage message;
    Handshake::Step step;
    Peer* from = nullptr;
    // Taken for one message at a time. It keeps other threads from handling the next message before this one,
    // and on_closed() from reporting the end meanwhile.
    MutexLock releasing(releasing_);
    {
      MutexLock lock(mutex_);
      from = peer_.get();
      // Unparsed messages at the front without an admitted Hello: the Hello was refused.
      if (!held_.empty() && !handshake_.introduced() && held_.front().envelope == nullptr)
        dropped = held_.drop();
      if (held_.empty()) {
        handshake_.released();
        if (handshake_.introduced()) active_ = from;
        return;
      }
      if (held_.front().envelope != nullptr) {
        step = decide_locked(**held_.front().envelope);
        if (step.action == Action::kHold) return limit_wait_locked();
      }
      message = held_.pop();
    }
    if (message.envelope != nullptr) {
      perform(step, from, std::move(message.envelope), std::move(message.buffers));
      continue;
    }
    // Once parsed, it goes back to the front: it may have to wait for a worker that it names.
    absl::StatusOr<EnvelopePtr> envelope = parse_envelope(message.unparsed, *connection_);
    if (!envelope.ok()) return connection_->close(envelope.status());
    message.envelope = *std::move(envelope);
    MutexLock lock(mutex_);
    held_.put_back(std::move(message));
  }
}

void Link::perform(const Handshake::Step& step, Peer* from, EnvelopePtr envelope,
                   std::vector<transport::Buffer> buffers) {
  absl::Status refused = step.reason;
  switch (step.action) {
    case Action::kAdmit:
      refused = admit((*envelope)->hello());
      break;
    case Action::kObserve:
    case Action::kAsk:
      refused = observe(std::move(envelope));
      break;
    case Action::kPart:
      return leave((*envelope)->goodbye());
    case Action::kDeliver:
      if (!deliver(*from, envelope, buffers)) {
        refused = absl::InvalidArgumentError(absl::StrCat("cannot handle a message from worker \"",
                                                          from->worker.name, "\": unknown kind of message"));
      }
      break;
    default:
      break;
  }
  if (!refused.ok()) refuse(refused);
}

// Reading the state of the worker may take long, and may wait, so questions are answered on the executor.
absl::Status Link::observe(EnvelopePtr message) {
  Observers& observers = *context_.observers;
  auto leave = [weak = weak_from_this()] {
    const std::shared_ptr<LinkSender> idle = weak.lock();
    if (idle == nullptr) return;
    const absl::Status reason = absl::ResourceExhaustedError("an idle observer makes room for another one");
    idle->part(goodbye(reason), reason, absl::ZeroDuration());
  };
  GRADWIRE_ASSIGN_OR_RETURN(const std::optional<proto::Envelope> reply,
                            observers.receive(context_.self, {number(), queued_bytes(), std::move(leave)},
                                              **message, timers_.clock().now()));
  if (reply.has_value()) return send(*reply, {}).status();
  // If the executor refuses the task, the worker is at its end.
  if (context_.executor == nullptr)
    return absl::UnavailableError("this worker has no threads that answer an observer");
  (void)context_.executor->post_clean([self = shared(), message = std::move(message)] {
    const proto::Envelope answer =
        self->context_.observers->answer(self->context_.self, self->number(), **message);
    if (absl::Status sent = self->send(answer, {}).status(); !sent.ok()) self->refuse(sent);
  });
  return absl::OkStatus();
}

void Link::refuse(const absl::Status& reason) {
  // A lost worker that connects and a liveness query are normal events.
  const bool expected = absl::IsAborted(reason) || absl::IsNotFound(reason);
  log(expected ? LogLevel::kInfo : LogLevel::kWarning, "connection with ", connection_->peer_address(),
      " was refused: ", reason.message());
  // Give the Goodbye one second to leave. on_closed() follows.
  part(goodbye(reason), reason, absl::Seconds(1));
}

bool Link::take_parts(EnvelopeBox& box, std::vector<transport::Buffer>& buffers) {
  const proto::Envelope& envelope = *box;
  absl::Status status;
  if (envelope.has_part()) {
    const uint64_t number = envelope.part().number();
    status =
        envelope.part().dropped() ? parts_.drop(number) : parts_.add(number, std::move(buffers), box.lost());
  } else if (envelope.parts() != 0) {
    auto all = parts_.join(envelope.parts(), std::move(buffers));
    if (all.ok()) {
      buffers = *std::move(all);
    } else if (is_local_shortage(all.status())) {
      box.set_lost(all.status());
    } else {
      status = all.status();
    }
  }
  if (!status.ok()) refuse(status);
  return status.ok();
}

bool Link::deliver(Peer& from, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers) {
  switch ((*envelope)->body_case()) {
    case proto::Envelope::kRequest:
      note_duty("a request");
      if (!take_parts(*envelope, buffers)) return true;
      context_.sink.on_request(from.worker, shared(), std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kResponse:
      note_duty("an answer");
      if (!take_parts(*envelope, buffers)) return true;
      context_.sink.on_response(from.worker, std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kCancel:
      note_duty("a cancellation");
      context_.sink.on_cancel(from.worker, number(), (*envelope)->cancel().call_id());
      break;
    case proto::Envelope::kPart:
      note_duty("a part of a message");
      if (!take_parts(*envelope, buffers)) return true;
      break;
    case proto::Envelope::kHeartbeat:
      note_duty("a heartbeat");
      if ((*envelope)->heartbeat().has_sent()) {
        const std::optional<Departures> sent = from_proto((*envelope)->heartbeat().sent());
        if (sent && from.update_arrivals(*sent)) context_.sink.on_settled(from.worker);
      }
      break;
    default:
      return false;
  }
  // The message has been handled. This thread and require() must not miss one another:
  //   1. This thread increments the counter, then reads Peer::unsettled_.
  //   2. require() sets unsettled_, then reads the counter.
  // All four accesses are sequentially consistent, so at least one of the two threads sees the other's write.
  read_->fetch_add(1);
  if (from.check_settled()) context_.sink.on_settled(from.worker);
  return true;
}

void Link::leave(const proto::Goodbye& goodbye) {
  Handshake::Parting parting;
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    parting = handshake_.part(goodbye);
    peer = peer_;
  }
  // Close first, so that the end of the link has the reason of the Goodbye, and not that of the loss.
  connection_->close(parting.reason);
  if (peer != nullptr && parting.lost) context_.host.lose(peer, *parting.lost, parting.reason);
}

absl::Status Link::admit(const proto::Hello& hello) {
  const std::shared_ptr<Link> self = shared();
  // The connection closed while its Hello was held.
  if (closed()) return absl::OkStatus();
  // 1. The peer accepts the connection, unless the worker has been lost meanwhile.
  const std::shared_ptr<Peer> peer = context_.group.peer(hello.incarnation());
  if (peer == nullptr) return declared_dead(hello.name(), context_.self.name);
  if (!made_here_) peer_name_ = peer->worker.name;
  GRADWIRE_ASSIGN_OR_RETURN(const bool restored,
                            peer->admit(self, hello.connection(), read_,
                                        made_here_ || proves_reachable(transport_, *connection_, *peer)));
  // 2. Accept what follows the Hello.
  {
    MutexLock lock(mutex_);
    handshake_.admitted(hello);
    peer_ = peer;
    max_message_bytes_ = std::numeric_limits<uint64_t>::max();
    // While messages are held, later ones must not overtake them: release() sets active_ when none is left.
    if (!handshake_.holds()) active_ = peer.get();
  }
  // 3. This side introduces itself too. Its requests follow its Hello.
  if (!made_here_) introduce(*peer);
  // An error means that the peer was lost meanwhile. Then lose() closes this connection.
  (void)peer->greeted(self);
  context_.host.on_open(*this, peer, restored);
  return absl::OkStatus();
}

void Link::on_closed(transport::Connection&, absl::Status reason) {
  wait_until_opened();
  // Set before the end is reported, so that a thread that sends on this link can see that its message may be
  // lost.
  closed_ = true;
  transfers_->end_link(number());
  // The tensors that the peer has not taken belong to the program.
  if (std::vector<std::shared_ptr<HandedOver>> tensors = drop_handed_over();
      !tensors.empty() && context_.executor != nullptr) {
    context_.executor->run_off_duty([tensors = std::move(tensors)] {});
  }
  parts_.clear();
  std::shared_ptr<Peer> peer;
  // Messages that are still held are lost with the connection.
  std::deque<HeldMessage> dropped;
  {
    // A held message that another thread is handling belongs before the end of the link. Wait for it.
    MutexLock releasing(releasing_);
    MutexLock lock(mutex_);
    active_ = nullptr;
    dropped = held_.drop();
    // The peer and the link own one another until here.
    std::swap(peer, peer_);
  }
  context_.host.on_closed(shared(), peer, reason);
}

uint64_t Link::take_recent_sender() {
  MutexLock lock(mutex_);
  if (!handshake_.introduced() || peer_ == nullptr) return 0;
  // A large message may take longer to arrive than the limit on silence. So bytes count, too.
  const uint64_t arrived = connection_->bytes_arrived();
  const bool progress = std::exchange(arrived_, arrived) != arrived;
  return received_.exchange(false) || progress ? peer_->worker.incarnation : 0;
}

}  // namespace gradwire::rpc
