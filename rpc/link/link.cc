#include "gradwire/rpc/link/link.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/name.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/link/goodbye.h"
#include "gradwire/rpc/link/peers.h"

// How Peers treats what arrives on a link, and its end.
namespace gradwire::rpc {
namespace {

const google::protobuf::RepeatedPtrField<proto::Reference>& references_of(const proto::Envelope& envelope) {
  return envelope.has_response() ? envelope.response().result().references()
                                 : envelope.request().arguments().references();
}

absl::StatusOr<EnvelopePtr> parse_envelope(const std::string& header, const transport::Connection& from) {
  EnvelopePtr envelope = make_envelope();
  if ((*envelope)->ParseFromString(header)) return envelope;
  absl::Status reason = absl::InvalidArgumentError(
      absl::StrCat("the message from ", from.peer_address(), " is no envelope: is a Gradwire worker there?"));
  log(LogLevel::kWarning, reason.message());
  return reason;
}

}  // namespace

void Link::on_message(transport::Connection& connection, transport::Message message) {
  wait_until_opened();
  const std::size_t size = message.byte_size();
  peers_.bytes_received_.fetch_add(size, std::memory_order_relaxed);
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
  if (peer == nullptr && peers_.hold_unread(shared_from_this(), message)) return;
  absl::StatusOr<EnvelopePtr> parsed = parse_envelope(message.header, connection);
  if (!parsed.ok()) {
    connection.close(parsed.status());
    return;
  }
  EnvelopePtr envelope = *std::move(parsed);
  if (!heard_.load(std::memory_order_relaxed)) heard_.store(true, std::memory_order_relaxed);
  if (peer != nullptr && references_of(**envelope).empty()) {
    if (peers_.deliver(*peer, *this, envelope, message.buffers)) return;
  }
  peers_.handle(shared_from_this(), std::move(envelope), std::move(message.buffers));
}

absl::StatusOr<uint64_t> Link::send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers) {
  absl::StatusOr<uint64_t> ticket = send_now(envelope.SerializeAsString(), std::move(buffers));
  if (has_late_.load(std::memory_order_relaxed)) send_late_ones();
  return ticket;
}

void Link::send_late(const proto::Envelope& envelope) {
  bool timer = false;
  {
    MutexLock lock(late_mutex_);
    late_.push_back(envelope.SerializeAsString());
    has_late_.store(true, std::memory_order_relaxed);
    timer = !std::exchange(late_timer_, true);
  }
  if (!timer) return;
  peers_.timers_.schedule(peers_.timers_.clock().now() + kLate, [weak = weak_from_this()] {
    std::shared_ptr<Link> link = weak.lock();
    if (link == nullptr) return;
    {
      MutexLock lock(link->late_mutex_);
      link->late_timer_ = false;
    }
    link->send_late_ones();
  });
}

void Link::send_late_ones() {
  std::vector<std::string> late;
  {
    MutexLock lock(late_mutex_);
    late.swap(late_);
    has_late_.store(false, std::memory_order_relaxed);
  }
  for (std::string& header : late) (void)send_now(std::move(header), {});
}

absl::StatusOr<uint64_t> Link::send_now(std::string header, std::vector<transport::Buffer> buffers) {
  wait_until_opened();
  transport::Message message{std::move(header), std::move(buffers)};
  const std::size_t size = message.byte_size();
  absl::StatusOr<uint64_t> ticket = depart(std::move(message));
  if (ticket.ok()) {
    peers_.bytes_sent_.fetch_add(size, std::memory_order_relaxed);
    if (!sent_.load(std::memory_order_relaxed)) sent_.store(true, std::memory_order_relaxed);
  }
  return ticket;
}

absl::StatusOr<uint64_t> Link::depart(transport::Message message) {
  // Before it leaves: whoever says afterwards what was sent must not leave it out.
  departed_.fetch_add(1);
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  if (!ticket.ok()) departed_.fetch_sub(1);
  return ticket;
}

void Link::capture(uint64_t ticket) { connection_->capture(ticket); }

absl::StatusOr<transport::Buffer> Link::allocate(std::size_t size) {
  wait_until_opened();
  return connection_->allocate(size);
}

void Link::on_closed(transport::Connection&, absl::Status reason) {
  wait_until_opened();
  peers_.on_closed(shared_from_this(), reason);
}

bool Peers::deliver(const Peer& peer, Link& link, EnvelopePtr& envelope,
                    std::vector<transport::Buffer>& buffers) {
  switch ((*envelope)->body_case()) {
    case proto::Envelope::kRequest:
      sink_.on_request(peer.worker, link.shared_from_this(), std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kResponse:
      sink_.on_response(peer.worker, std::move(envelope), std::move(buffers));
      break;
    case proto::Envelope::kCancel:
      sink_.on_cancel(peer.worker, link.number(), (*envelope)->cancel().call_id());
      break;
    case proto::Envelope::kHeartbeat:
      if ((*envelope)->heartbeat().has_sent()) note_heartbeat(peer, (*envelope)->heartbeat());
      break;
    default:
      return false;
  }
  count_read(link, peer);
  return true;
}

bool Peers::is_stranger_locked(const proto::Envelope& envelope) const {
  if (envelope.body_case() != proto::Envelope::kHello || envelope.hello().incarnation() == 0) return false;
  return !by_incarnation_.contains(envelope.hello().incarnation()) &&
         !gone_.contains(envelope.hello().incarnation());
}

bool Peers::names_stranger_locked(const proto::Envelope& envelope) const {
  const auto& references = references_of(envelope);
  return std::any_of(references.begin(), references.end(),
                     [this](const proto::Reference& reference) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return !by_incarnation_.contains(reference.owner()) &&
                              !gone_.contains(reference.owner());
                     });
}

bool Peers::must_wait_locked(const Link& link, const proto::Envelope& envelope) const {
  // Whoever makes a connection knows who must answer.
  return (!link.made_here_ && is_stranger_locked(envelope)) ||
         (!link.impatient_ && names_stranger_locked(envelope));
}

// A Hello has a timer of its own (kHelloTimeout).
void Peers::limit_wait_locked(const std::shared_ptr<Link>& link) {
  if (!link->introduced_ || std::exchange(link->limited_, true)) return;
  timers_.schedule(timers_.clock().now() + Link::kStrangerTimeout, [this, weak = std::weak_ptr<Link>(link)] {
    {
      MutexLock lock(mutex_);
      if (std::shared_ptr<Link> waiting = weak.lock()) waiting->impatient_ = true;
    }
    release_held();
  });
}

// Whether a connection that came in shows that its kind leads to the other side's listener too: within a host, or from
// the address where that listens.
bool Peers::leads_back_locked(const Link& link, const Peer& peer) const {
  if (link.transport_ == "shm") return true;
  const std::string from = link.connection_->peer_address();
  const std::string host = from.substr(0, from.rfind(':'));
  for (const proto::Address& address : peer.record.addresses()) {
    if (address.transport() == link.transport_ && !host.empty() && absl::StrContains(address.address(), host))
      return true;
  }
  return false;
}

// Others may have read in the group's log of one who joined, this worker himself for example, before he has read so much.
// What comes from him, or names him, waits until the log tells of him too; what comes on the same connection waits behind
// it. It does not take long.
void Peers::handle(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                   std::vector<transport::Buffer> buffers) {
  bool holds = false, too_much = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    // Anything else but a Hello is refused as the first message, and a question needs no directory.
    const bool may_wait =
        link->introduced_ || ((*envelope)->has_hello() && (*envelope)->hello().incarnation() != 0);
    if (!link->holds_ && may_wait && (!ready_ || must_wait_locked(*link, **envelope))) {
      link->holds_ = true;
      link->active_ = nullptr;
      if (!link->introduced_) link->max_message_bytes_ = options_.limits.max_held_bytes;
      held_.push_back(link);
      limit_wait_locked(link);
    }
    holds = link->holds_;
    if (holds) {
      const uint64_t bytes = sizeof(EnvelopeBox) + (*envelope)->SpaceUsedLong();
      too_much = !hold_locked(*link, {std::move(envelope), std::string(), std::move(buffers), bytes});
    }
  }
  if (too_much) refuse(link, held_too_much());
  if (!holds) dispatch(link, std::move(envelope), std::move(buffers));
}

bool Peers::hold_unread(const std::shared_ptr<Link>& link, transport::Message& message) {
  {
    MutexLock lock(mutex_);
    if (link->introduced_ || !link->holds_) return false;
    const uint64_t bytes = message.header.size();
    if (hold_locked(*link, {nullptr, std::move(message.header), std::move(message.buffers), bytes}))
      return true;
  }
  refuse(link, held_too_much());
  return true;
}

bool Peers::hold_locked(Link& link, HeldMessage message) {
  message.bytes += sizeof(message);
  for (const transport::Buffer& buffer : message.buffers) message.bytes += sizeof(buffer) + buffer.size();
  const auto fits = [&](uint64_t held, uint64_t most) {
    return message.bytes <= most - std::min(most, held);
  };
  if (link.held_.size() >= Link::kMaxHeld || !fits(link.held_bytes_, options_.limits.max_held_bytes) ||
      !fits(held_bytes_, options_.limits.max_held_bytes_in_all)) {
    return false;
  }
  count_held_locked(link, message.bytes);
  link.held_.push_back(std::move(message));
  return true;
}

absl::Status Peers::held_too_much() const {
  return absl::ResourceExhaustedError(
      absl::StrCat("holding messages from or about a worker that is not known here yet: got more than ",
                   Link::kMaxHeld, " of them, max_held_bytes=", options_.limits.max_held_bytes,
                   " on this connection or max_held_bytes_in_all=", options_.limits.max_held_bytes_in_all,
                   "; try again later"));
}

void Peers::release_held() {
  std::vector<std::shared_ptr<Link>> links;
  {
    MutexLock lock(mutex_);
    links.swap(held_);
  }
  for (const std::shared_ptr<Link>& link : links) {
    // What still comes in on the link queues behind what is held, until nothing is.
    while (true) {
      MutexLock releasing(link->releasing_);
      HeldMessage message;
      std::deque<HeldMessage> dropped;
      {
        MutexLock lock(mutex_);
        // Its Hello was refused.
        if (!link->held_.empty() && !link->introduced_ && link->held_.front().envelope == nullptr) {
          dropped = drop_held_locked(*link);
        }
        if (link->held_.empty()) {
          link->holds_ = false;
          link->impatient_ = false;
          link->limited_ = false;
          if (link->introduced_) link->active_ = link->peer_.get();
          break;
        }
        HeldMessage& front = link->held_.front();
        if (front.envelope != nullptr && (!ready_ || must_wait_locked(*link, **front.envelope))) {
          held_.push_back(link);
          limit_wait_locked(link);
          break;
        }
        message = std::move(front);
        link->held_.pop_front();
        count_held_locked(*link, -message.bytes);
      }
      if (message.envelope == nullptr) {
        if (!read_held(link, message)) break;
        continue;
      }
      dispatch(link, std::move(message.envelope), std::move(message.buffers));
    }
  }
}

// Parses a message and puts it back where it was, since it may have to wait for whom it names.
bool Peers::read_held(const std::shared_ptr<Link>& link, HeldMessage& message) {
  absl::StatusOr<EnvelopePtr> envelope = parse_envelope(message.unread, *link->connection_);
  if (!envelope.ok()) {
    link->connection_->close(envelope.status());
    return false;
  }
  message.envelope = *std::move(envelope);
  message.bytes += sizeof(EnvelopeBox) + (*message.envelope)->SpaceUsedLong() - message.unread.size();
  message.unread = std::string();
  MutexLock lock(mutex_);
  count_held_locked(*link, message.bytes);
  link->held_.push_front(std::move(message));
  return true;
}

void Peers::count_held_locked(Link& link, uint64_t bytes) {
  link.held_bytes_ += bytes;
  held_bytes_ += bytes;
}

std::deque<HeldMessage> Peers::drop_held_locked(Link& link) {
  count_held_locked(link, -link.held_bytes_);
  return std::exchange(link.held_, {});
}

void Peers::dispatch(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                     std::vector<transport::Buffer> buffers) {
  std::shared_ptr<Peer> from;
  bool introduced = false;
  {
    MutexLock lock(mutex_);
    introduced = link->introduced_;
    from = link->peer_;
  }
  switch ((*envelope)->body_case()) {
    case proto::Envelope::kHello:
      if (absl::Status admitted = admit((*envelope)->hello(), link); !admitted.ok()) refuse(link, admitted);
      return;
    case proto::Envelope::kGoodbye:
      leave(link, (*envelope)->goodbye());
      return;
    default:
      break;
  }
  if (!introduced || from == nullptr) {
    refuse(link, absl::InvalidArgumentError(absl::StrCat("a message from ", link->connection_->peer_address(),
                                                         " came before its Hello")));
    return;
  }
  if (!deliver(*from, *link, envelope, buffers)) {
    refuse(link, absl::InvalidArgumentError(absl::StrCat("a message from worker \"", from->worker.name,
                                                         "\" has a kind that is unknown here")));
  }
}

// A worker that shuts down says Cancelled; any other code is why it refuses this one.
void Peers::leave(const std::shared_ptr<Link>& link, const proto::Goodbye& goodbye) {
  absl::Status said = status_from_proto(goodbye.reason());
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    peer = link->peer_;
  }
  if (peer == nullptr) {
    link->connection_->close(said.ok() ? absl::UnavailableError("the other side said goodbye") : said);
    return;
  }
  const std::string& name = peer->worker.name;
  const bool left = said.ok() || absl::IsCancelled(said);
  absl::Status reason = left ? absl::UnavailableError(absl::StrCat("worker \"", name, "\" has left"))
                             : with_context(said, absl::StrCat("worker \"", name, "\" refuses this one"));
  if (!left && !absl::IsAborted(said)) {
    // It lives, and does not like this connection.
    link->connection_->close(with_worker(absl::UnavailableError(reason.message()), name));
    return;
  }
  link->connection_->close(with_worker(reason, name));
  lose(peer, left ? WorkerState::kLeft : WorkerState::kDead, reason);
}

absl::Status Peers::admit(const proto::Hello& hello, const std::shared_ptr<Link>& link) {
  // First of all: the messages below have the name in them.
  GRADWIRE_RETURN_IF_ERROR(with_context(check_name("worker name", hello.name()), "a Hello"));
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("worker \"", hello.name(),
                                                      "\" speaks protocol version ", hello.protocol_version(),
                                                      ", \"", self_.name, "\" speaks ", kProtocolVersion));
  }
  if (hello.incarnation() == 0) {
    // Somebody asks for whom to_incarnation names.
    if (hello.to_incarnation() == self_.incarnation)
      return absl::NotFoundError("a question whether this worker lives");
    return absl::AbortedError("another worker listens here now");
  }
  uint64_t timer = 0;
  bool answer = false;
  bool restored = false;
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    // Closed while its Hello waited for the directory.
    if (!links_.contains(link->number())) return absl::OkStatus();
    if (gone_.contains(hello.incarnation())) {
      return absl::AbortedError(absl::StrCat(
          "worker \"", hello.name(), "\" was declared dead, or left, before \"", self_.name, "\" joined"));
    }
    auto found = by_incarnation_.find(hello.incarnation());
    if (found == by_incarnation_.end() || found->second->worker.name != hello.name()) {
      return absl::NotFoundError(absl::StrCat("worker \"", hello.name(), "\" (id ", hello.id(),
                                              ") is not the one that joined the group of \"", self_.name,
                                              "\""));
    }
    peer = found->second;
    if (link->peer_ != nullptr && link->peer_ != peer) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker \"", hello.name(), "\" answers in the place of \"", link->peer_->worker.name, "\""));
    }
    if (peer->lost && peer->left) {
      return absl::AbortedError(
          absl::StrCat("worker \"", hello.name(), "\" has left the group of \"", self_.name, "\""));
    }
    if (peer->lost) {
      return declared_dead(hello.name(), self_.name);
    }
    answer = link->peer_ == nullptr;
    if (answer && hello.to_incarnation() != self_.incarnation) {
      return absl::AbortedError(absl::StrCat("worker \"", self_.name, "\" came back as a new incarnation"));
    }
    if (link->introduced_) return absl::InvalidArgumentError("a second Hello");
    if (hello.connection() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the Hello of worker \"", hello.name(), "\" does not number its connection"));
    }
    if (!peer->arrivals.open(hello.connection(), link->read_)) {
      return absl::UnavailableError(absl::StrCat("connection ", hello.connection(), " of worker \"",
                                                 hello.name(),
                                                 "\" has ended at its own end, or has come before"));
    }
    link->arrives_as_ = hello.connection();
    link->peer_ = peer;
    link->introduced_ = true;
    if (!link->made_here_) --unadmitted_;
    link->max_message_bytes_ = std::numeric_limits<uint64_t>::max();
    ++peer->links;
    if (link->made_here_ || leads_back_locked(*link, *peer)) peer->worked.insert(link->transport_);
    restored = std::exchange(peer->broke, false);
    // Behind what is held there is nothing to overtake: release_held sets it then.
    if (!link->holds_) link->active_ = peer.get();
    std::swap(timer, link->hello_timer_);
  }
  if (answer) introduce(link, peer, 0);
  {
    // Requests of this side follow its Hello.
    MutexLock lock(mutex_);
    link->greeted_ = true;
    // A connection that the other side made because the older one had died, which does not show on this side yet.
    if ((peer->link == nullptr || peer->suspect) && peer->worker.incarnation != self_.incarnation &&
        !peer->lost && links_.contains(link->number())) {
      peer->link = link;
    }
  }
  if (timer != 0) timers_.cancel(timer);
  if (peer->worker.incarnation == self_.incarnation) return absl::OkStatus();
  log(LogLevel::kInfo, "worker \"", self_.name, "\" is connected with worker \"", peer->worker.name, "\" by ",
      link->transport_);
  if (link->made_here_) report_given_up(*peer);
  watch(*peer, &FailureDetector::connected, absl::OkStatus());
  if (restored) sink_.on_link_restored(peer->worker);
  return absl::OkStatus();
}

void Peers::refuse(const std::shared_ptr<Link>& link, const absl::Status& reason) {
  // A worker that has gone, or somebody who asks whether this one lives, is nothing to worry about.
  const bool usual = absl::IsAborted(reason) || absl::IsNotFound(reason);
  log(usual ? LogLevel::kInfo : LogLevel::kWarning, "connection with ", link->connection_->peer_address(),
      " refused: ", reason.message());
  (void)link->connection_->send({goodbye(reason), {}});
  link->connection_->close(reason, absl::Seconds(1));
}

std::shared_ptr<Link> Peers::another_link_locked(const Peer& peer) const {
  for (const auto& [number, link] : links_) {
    if (link->introduced_ && link->greeted_ && link->peer_.get() == &peer) return link;
  }
  return nullptr;
}

void Peers::on_closed(const std::shared_ptr<Link>& link, const absl::Status& reason) {
  // Before anybody hears of it: who sends on it from now on can see that it may be lost.
  link->closed_ = true;
  std::shared_ptr<Peer> peer;
  uint64_t timer = 0;
  bool introduced = false, settled = false, gone = false, reachable = false, restored = false;
  // Lost with the connection: what is not handed over by now never was.
  std::deque<HeldMessage> dropped;
  {
    MutexLock releasing(link->releasing_);
    MutexLock lock(mutex_);
    link->active_ = nullptr;
    dropped = drop_held_locked(*link);
    std::erase(held_, link);
    introduced = link->introduced_;
    if (!introduced && !link->made_here_ && links_.contains(link->number())) --unadmitted_;
    links_.erase(link->number());
    links_changed_.notify_all();
    std::swap(timer, link->hello_timer_);
    std::swap(peer, link->peer_);
    if (peer != nullptr) {
      // Whoever made the connection may have sent more behind its Hello: that is lost also when no answer came.
      peer->broke = true;
      if (introduced) {
        --peer->links;
        peer->arrivals.close(link->arrives_as_);
        settled = settles_locked(*peer);
      }
      if (std::erase(peer->numbered, link) > 0) peer->untold = true;
      reachable = peer->links > 0;
      // Another connection is there already.
      if (reachable) restored = std::exchange(peer->broke, false);
      if (peer->link == link) peer->link = another_link_locked(*peer);
      gone = stopping_ || peer->lost || peer->worker.incarnation == self_.incarnation;
    }
  }
  if (timer != 0) timers_.cancel(timer);
  if (peer == nullptr) return;
  sink_.on_link_closed(peer->worker, *link, reason);
  log(LogLevel::kInfo, "worker \"", self_.name, "\": the connection with worker \"", peer->worker.name,
      "\" by ", link->transport_, " has ended: ", reason.message());
  if (settled) sink_.on_settled(peer->worker);
  if (restored && !gone) sink_.on_link_restored(peer->worker);
  if (gone || reachable) return;
  if (!introduced) {
    attempt_failed(peer, link->transport_, reason);
    return;
  }
  // It broke by what came over it: another transport may do better.
  if (absl::IsInvalidArgument(reason) && link->made_here_ && ways_to(*peer).size() > 1) {
    give_up(*peer, link->transport_, reason);
  }
  watch(*peer, &FailureDetector::disconnected, reason);
}

}  // namespace gradwire::rpc
