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

namespace gradwire::rpc {

using Action = Handshake::Action;

namespace {

absl::StatusOr<EnvelopePtr> parse_envelope(const std::string& header, const transport::Connection& from) {
  EnvelopePtr envelope = make_envelope();
  if ((*envelope)->ParseFromString(header)) return envelope;
  absl::Status reason = absl::InvalidArgumentError(absl::StrCat(
      "the message from ", from.peer_address(), " is not an envelope: is a Gradwire worker there?"));
  log(LogLevel::kWarning, reason.message());
  return reason;
}

}  // namespace

Link::Link(Context& context, uint64_t number, std::shared_ptr<Peer> peer, std::string transport)
    : LinkSender(context.timers, context.bytes_sent, number),
      context_(context),
      transport_(std::move(transport)),
      made_here_(peer != nullptr),
      handshake_(context.self, made_here_ ? std::make_optional(peer->worker) : std::nullopt),
      peer_(std::move(peer)),
      held_(context.limits, context.held_bytes) {}

absl::Status Link::connect(transport::Transport& transport, const std::string& address,
                           absl::Duration timeout) {
  const std::shared_ptr<Link> self = shared();
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer = peer_;
  }
  // A host name may have to be looked up here, which takes its time: only those who want this peer wait.
  MutexLock opening(opening_);
  GRADWIRE_ASSIGN_OR_RETURN(connection_, transport.connect(address, self, timeout));
  absl::Status status = context_.host.on_made(self);
  if (status.ok()) status = peer->add(self);
  if (status.ok()) {
    introduce(*peer);
    status = peer->greeted(self);
  }
  // Last of all: its end, too, waits for this.
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
  return handshake_.introduced();
}

void Link::introduce(Peer& peer) {
  proto::Envelope envelope;
  const uint64_t number = peer.number(*this);
  {
    MutexLock lock(mutex_);
    *envelope.mutable_hello() = handshake_.hello(number);
  }
  // A failure shows as on_closed.
  (void)connection_->send({envelope.SerializeAsString(), {}});
}

void Link::on_message(transport::Connection& connection, transport::Message message) {
  wait_until_opened();
  const std::size_t size = message.byte_size();
  context_.bytes_received.fetch_add(size, std::memory_order_relaxed);
  // Not every transport asks before it receives.
  if (const uint64_t most = max_message_bytes(); size > most) {
    absl::Status reason = absl::InvalidArgumentError(absl::StrCat(
        "a message from ", connection.peer_address(), ", which has not been admitted, is too large: got ",
        size, " bytes, expected at most ", most));
    log(LogLevel::kWarning, reason.message());
    connection.close(reason);
    return;
  }
  Peer* const peer = active_.load(std::memory_order_acquire);
  if (peer == nullptr && hold_unread(message)) return;
  absl::StatusOr<EnvelopePtr> parsed = parse_envelope(message.header, connection);
  if (!parsed.ok()) {
    connection.close(parsed.status());
    return;
  }
  EnvelopePtr envelope = *std::move(parsed);
  if (!heard_.load(std::memory_order_relaxed)) heard_.store(true, std::memory_order_relaxed);
  if (peer != nullptr && references_of(**envelope).empty()) {
    if (deliver(*peer, envelope, message.buffers)) return;
  }
  handle(std::move(envelope), std::move(message.buffers));
}

// The group may change before this link is among those that wait for it: so it asks again afterwards.
Handshake::Step Link::decide_locked(const proto::Envelope& envelope) {
  Handshake::Step step = handshake_.receive(envelope, context_.group);
  if (step.action != Action::kHold) return step;
  context_.host.wait_for_group(shared());
  return handshake_.receive(envelope, context_.group);
}

bool Link::hold_unread(transport::Message& message) {
  Handshake::Step refused{Action::kRefuse, {}};
  {
    MutexLock lock(mutex_);
    if (handshake_.introduced() || !handshake_.holds()) return false;
    if (held_.push({nullptr, std::move(message.header), std::move(message.buffers)})) return true;
    refused.reason = held_.too_much();
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
        handshake_.hold();
        active_ = nullptr;
        if (!handshake_.introduced()) max_message_bytes_ = context_.limits.max_held_bytes;
        limit_wait_locked();
      }
      if (held_.push({std::move(envelope), std::string(), std::move(buffers)})) return;
      step = {Action::kRefuse, held_.too_much()};
    }
  }
  perform(step, from, std::move(envelope), std::move(buffers));
}

void Link::limit_wait_locked() {
  if (!handshake_.limit_wait()) return;
  timers_.schedule(timers_.clock().now() + kStrangerTimeout, [weak = weak_from_this()] {
    const std::shared_ptr<Link> link = std::static_pointer_cast<Link>(weak.lock());
    if (link == nullptr) return;
    {
      MutexLock lock(link->mutex_);
      link->handshake_.expire_timeout();
    }
    link->release();
  });
}

void Link::release() {
  // Messages that still come in on the link queue behind the held ones, until none is held.
  while (true) {
    std::deque<HeldMessage> dropped;
    HeldMessage message;
    Handshake::Step step;
    Peer* from = nullptr;
    MutexLock releasing(releasing_);
    {
      MutexLock lock(mutex_);
      from = peer_.get();
      // Its Hello was refused.
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
    // Back to where it was, since it may have to wait for whom it names.
    absl::StatusOr<EnvelopePtr> envelope = parse_envelope(message.unread, *connection_);
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
    case Action::kPart:
      return leave((*envelope)->goodbye());
    case Action::kDeliver:
      if (!deliver(*from, envelope, buffers)) {
        refused = absl::InvalidArgumentError(absl::StrCat("a message from worker \"", from->worker.name,
                                                          "\" has a kind that is unknown here"));
      }
      break;
    default:
      break;
  }
  if (refused.ok()) return;
  // A worker that has gone, or somebody who asks whether this one lives, is nothing to worry about.
  const bool usual = absl::IsAborted(refused) || absl::IsNotFound(refused);
  log(usual ? LogLevel::kInfo : LogLevel::kWarning, "connection with ", connection_->peer_address(),
      " refused: ", refused.message());
  part(goodbye(refused), refused, absl::Seconds(1));
}

bool Link::deliver(Peer& from, EnvelopePtr& envelope, std::vector<transport::Buffer>& buffers) {
  switch ((*envelope)->body_case()) {
    case proto::Envelope::kRequest:
      context_.sink.on_request(from.worker, shared(), std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kResponse:
      context_.sink.on_response(from.worker, std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kCancel:
      context_.sink.on_cancel(from.worker, number(), (*envelope)->cancel().call_id());
      break;
    case proto::Envelope::kHeartbeat:
      if ((*envelope)->heartbeat().has_sent()) {
        const std::optional<Departures> sent = from_proto((*envelope)->heartbeat().sent());
        if (sent && from.told(*sent)) context_.sink.on_settled(from.worker);
      }
      break;
    default:
      return false;
  }
  // The message has been handled. In this order, both sequentially consistent: require() says that something
  // is unsettled and then reads the counter, so that one of the two sees the other.
  read_->fetch_add(1);
  if (from.settles()) context_.sink.on_settled(from.worker);
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
  connection_->close(parting.reason);
  if (peer != nullptr && parting.lost) context_.host.lose(peer, *parting.lost, parting.reason);
}

absl::Status Link::admit(const proto::Hello& hello) {
  const std::shared_ptr<Link> self = shared();
  // Closed while its Hello waited.
  if (closed()) return absl::OkStatus();
  // 1. The worker takes the connection, unless it has been lost meanwhile.
  const std::shared_ptr<Peer> peer = context_.group.peer(hello.incarnation());
  if (peer == nullptr) return declared_dead(hello.name(), context_.self.name);
  GRADWIRE_ASSIGN_OR_RETURN(const bool restored,
                            peer->admit(self, hello.connection(), read_, made_here_ || leads_back(*peer)));
  // 2. Accept what follows the Hello.
  {
    MutexLock lock(mutex_);
    handshake_.admitted(hello);
    peer_ = peer;
    max_message_bytes_ = std::numeric_limits<uint64_t>::max();
    // Behind what is held there is nothing to overtake: release() sets it then.
    if (!handshake_.holds()) active_ = peer.get();
  }
  // 3. This side introduces itself too. Its requests follow its Hello.
  if (!made_here_) introduce(*peer);
  (void)peer->greeted(self);
  context_.host.on_open(*this, peer, restored);
  return absl::OkStatus();
}

// Within a host, or from the address where that listens.
bool Link::leads_back(const Peer& peer) const {
  if (transport_ == "shm") return true;
  const std::string from = connection_->peer_address();
  const std::string host = from.substr(0, from.rfind(':'));
  for (const proto::Address& address : peer.record.addresses()) {
    if (address.transport() == transport_ && !host.empty() && absl::StrContains(address.address(), host))
      return true;
  }
  return false;
}

void Link::on_closed(transport::Connection&, absl::Status reason) {
  wait_until_opened();
  // Set it before the end is reported: a sender on this link can then see that its message may be lost.
  closed_ = true;
  std::shared_ptr<Peer> peer;
  // Messages that are not handed over by now are lost with the connection.
  std::deque<HeldMessage> dropped;
  {
    MutexLock releasing(releasing_);
    MutexLock lock(mutex_);
    active_ = nullptr;
    dropped = held_.drop();
    std::swap(peer, peer_);
  }
  context_.host.on_closed(shared(), peer, reason);
}

uint64_t Link::heard_from() {
  MutexLock lock(mutex_);
  if (!handshake_.introduced() || peer_ == nullptr) return 0;
  const uint64_t arrived = connection_->bytes_arrived();
  const bool progress = std::exchange(arrived_, arrived) != arrived;
  return heard_.exchange(false) || progress ? peer_->worker.incarnation : 0;
}

}  // namespace gradwire::rpc
