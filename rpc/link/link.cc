#include "gradwire/rpc/link/link.h"

#include <deque>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/rpc/link/departures_codec.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/peer_table.h"

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
namespace gradwire::rpc {

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

// Handles a message of an observer, and sends the answer. An error ends the link.
absl::Status serve_observer(Observers& observers, const Worker& self, LinkSender& link,
                            const proto::Envelope& envelope, absl::Time now) {
  auto leave = [weak = link.weak_from_this()] {
    const std::shared_ptr<LinkSender> idle = weak.lock();
    if (idle == nullptr) return;
    const absl::Status reason = absl::ResourceExhaustedError("an idle observer makes room for another one");
    idle->part(goodbye(reason), reason, absl::ZeroDuration());
  };
  const absl::StatusOr<proto::Envelope> reply =
      observers.receive(self, {link.number(), link.queued_bytes(), std::move(leave)}, envelope, now);
  return reply.ok() ? link.send(*reply, {}).status() : reply.status();
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
  // connect() may resolve a host name, which can take long. Only threads that want this peer wait meanwhile.
  MutexLock opening(opening_);
  GRADWIRE_ASSIGN_OR_RETURN(connection_, transport.connect(address, self, timeout));
  absl::Status status = context_.host.on_made(self);
  if (status.ok()) status = peer->add(self);
  if (status.ok()) {
    introduce(*peer);
    status = peer->greeted(self);
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
  proto::Envelope envelope;
  const uint64_t number = peer.number(*this);
  {
    MutexLock lock(mutex_);
    *envelope.mutable_hello() = handshake_.hello(number);
  }
  // If the send fails, on_closed() follows.
  (void)connection_->send({envelope.SerializeAsString(), {}});
}

void Link::on_message(transport::Connection& connection, transport::Message message) {
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
  if (peer == nullptr && hold_unparsed(message)) return;
  absl::StatusOr<EnvelopePtr> parsed = parse_envelope(message.header, connection);
  if (!parsed.ok()) {
    connection.close(parsed.status());
    return;
  }
  EnvelopePtr envelope = *std::move(parsed);
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
      refused = serve_observer(*context_.observers, context_.self, *this, **envelope, timers_.clock().now());
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

void Link::refuse(const absl::Status& reason) {
  // A lost worker that connects and a liveness query are normal events.
  const bool expected = absl::IsAborted(reason) || absl::IsNotFound(reason);
  log(expected ? LogLevel::kInfo : LogLevel::kWarning, "connection with ", connection_->peer_address(),
      " was refused: ", reason.message());
  // Give the Goodbye one second to leave. on_closed() follows.
  part(goodbye(reason), reason, absl::Seconds(1));
}

bool Link::take_parts(const proto::Envelope& envelope, std::vector<transport::Buffer>& buffers) {
  absl::Status status;
  if (envelope.has_part()) {
    const uint64_t number = envelope.part().number();
    status = envelope.part().dropped() ? parts_.drop(number) : parts_.add(number, std::move(buffers));
  } else if (envelope.parts() != 0) {
    auto all = parts_.join(envelope.parts(), std::move(buffers));
    status = all.status();
    if (all.ok()) buffers = *std::move(all);
  }
  if (!status.ok()) refuse(status);
  return status.ok();
}

bool Link::deliver(Peer& from, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers) {
  switch ((*envelope)->body_case()) {
    case proto::Envelope::kRequest:
      if (!take_parts(**envelope, buffers)) return true;
      context_.sink.on_request(from.worker, shared(), std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kResponse:
      if (!take_parts(**envelope, buffers)) return true;
      context_.sink.on_response(from.worker, std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kCancel:
      context_.sink.on_cancel(from.worker, number(), (*envelope)->cancel().call_id());
      break;
    case proto::Envelope::kPart:
      if (!take_parts(**envelope, buffers)) return true;
      break;
    case proto::Envelope::kHeartbeat:
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
  drop_handed_over();
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
