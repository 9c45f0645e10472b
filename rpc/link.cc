#include "rpc/link.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/log.h"
#include "rpc/codec_containers.h"
#include "rpc/goodbye.h"
#include "rpc/peers.h"

// How Peers treats what arrives on a link, and its end.
namespace gradwire::rpc {
namespace {

const google::protobuf::RepeatedPtrField<proto::Reference>& references_of(const proto::Envelope& envelope) {
  return envelope.has_response() ? envelope.response().result().references()
                                 : envelope.request().arguments().references();
}

}  // namespace

void Link::on_message(transport::Connection& connection, transport::Message message) {
  wait_until_opened();
  peers_.bytes_received_.fetch_add(message.byte_size(), std::memory_order_relaxed);
  EnvelopePtr envelope = make_envelope();
  if (!(*envelope)->ParseFromString(message.header)) {
    absl::Status reason = absl::InvalidArgumentError(absl::StrCat(
        "the message from ", connection.peer_address(), " is no envelope: is a Gradwire worker there?"));
    log(LogLevel::kWarning, reason.message());
    connection.close(reason);
    return;
  }
  if (!heard_.load(std::memory_order_relaxed)) heard_.store(true, std::memory_order_relaxed);
  Peer* const peer = active_.load(std::memory_order_acquire);
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
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  if (ticket.ok()) {
    peers_.bytes_sent_.fetch_add(size, std::memory_order_relaxed);
    if (!sent_.load(std::memory_order_relaxed)) sent_.store(true, std::memory_order_relaxed);
  }
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
      if (!link.asked_.load(std::memory_order_relaxed)) note_request(link);
      sink_.on_request(peer.worker, link.shared_from_this(), std::move(envelope), std::move(buffers));
      return true;
    case proto::Envelope::kResponse:
      sink_.on_response(peer.worker, std::move(envelope), std::move(buffers));
      return true;
    case proto::Envelope::kCancel:
      sink_.on_cancel(peer.worker, link.number(), (*envelope)->cancel().call_id());
      return true;
    case proto::Envelope::kHeartbeat:
      return true;
    default:
      return false;
  }
}

void Peers::note_request(Link& link) {
  MutexLock lock(mutex_);
  if (link.asked_.exchange(true)) return;
  if (link.introduced_ && link.peer_ != nullptr) ++link.peer_->request_links;
}

bool Peers::is_stranger_locked(const proto::Envelope& envelope) const {
  if (envelope.body_case() != proto::Envelope::kHello || envelope.hello().incarnation() == 0) return false;
  return !by_incarnation_.contains(envelope.hello().incarnation()) &&
         !gone_before_.contains(envelope.hello().incarnation());
}

bool Peers::names_stranger_locked(const proto::Envelope& envelope) const {
  const auto& references = references_of(envelope);
  return std::any_of(references.begin(), references.end(),
                     [this](const proto::Reference& reference) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                       return !by_incarnation_.contains(reference.owner()) &&
                              !gone_before_.contains(reference.owner());
                     });
}

bool Peers::must_wait_locked(const Link& link, const proto::Envelope& envelope) const {
  return is_stranger_locked(envelope) || (!link.impatient_ && names_stranger_locked(envelope));
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
  bool too_much = false;
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    const bool question = (*envelope)->has_hello() && (*envelope)->hello().incarnation() == 0;
    if (!link->holds_ && !question && (!ready_ || must_wait_locked(*link, **envelope))) {
      link->holds_ = true;
      link->active_ = nullptr;
      held_.push_back(link);
      limit_wait_locked(link);
    }
    if (link->holds_) {
      for (const transport::Buffer& buffer : buffers) link->held_bytes_ += buffer.size();
      too_much = link->held_.size() >= Link::kMaxHeld || link->held_bytes_ > Link::kMaxHeldBytes;
      if (!too_much) {
        link->held_.emplace_back(std::move(envelope), std::move(buffers));
        return;
      }
    }
  }
  if (too_much) {
    refuse(link, absl::ResourceExhaustedError("too much from a worker that is not known here yet"));
    return;
  }
  dispatch(link, std::move(envelope), std::move(buffers));
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
      Link::Held message;
      {
        MutexLock lock(mutex_);
        if (link->held_.empty()) {
          link->holds_ = false;
          link->impatient_ = false;
          link->limited_ = false;
          link->held_bytes_ = 0;
          if (link->introduced_) link->active_ = link->peer_.get();
          break;
        }
        if (!ready_ || must_wait_locked(*link, **link->held_.front().first)) {
          held_.push_back(link);
          limit_wait_locked(link);
          break;
        }
        message = std::move(link->held_.front());
        link->held_.pop_front();
      }
      dispatch(link, std::move(message.first), std::move(message.second));
    }
  }
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
    if (gone_before_.contains(hello.incarnation())) {
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
    link->peer_ = peer;
    link->introduced_ = true;
    link->introduced_at_ = timers_.clock().now();
    --unintroduced_;
    ++peer->links;
    peer->newest_link = std::max(peer->newest_link, link->number());
    if (link->made_here_ || leads_back_locked(*link, *peer)) peer->worked.insert(link->transport_);
    restored = std::exchange(peer->broke, false);
    // Behind what is held there is nothing to overtake: release_held sets it then.
    if (!link->holds_) link->active_ = peer.get();
    std::swap(timer, link->hello_timer_);
  }
  if (answer) introduce(*link, 0);
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

// The one link that is left is the newest: what comes on it comes after all that came on others.
bool Peers::is_settled_locked(const Peer& peer) const {
  if (peer.links == 0) return true;
  return peer.links == 1 && links_.contains(peer.newest_link);
}

void Peers::on_closed(const std::shared_ptr<Link>& link, const absl::Status& reason) {
  // Before anybody hears of it: who sends on it from now on can see that it may be lost.
  link->closed_ = true;
  std::shared_ptr<Peer> peer;
  uint64_t timer = 0;
  bool introduced = false, settled = false, gone = false, reachable = false, restored = false;
  // Lost with the connection: what is not handed over by now never was.
  std::deque<Link::Held> dropped;
  {
    MutexLock releasing(link->releasing_);
    MutexLock lock(mutex_);
    link->active_ = nullptr;
    dropped.swap(link->held_);
    std::erase(held_, link);
    introduced = link->introduced_;
    if (!introduced && links_.contains(link->number())) --unintroduced_;
    links_.erase(link->number());
    links_changed_.notify_all();
    std::swap(timer, link->hello_timer_);
    std::swap(peer, link->peer_);
    if (peer != nullptr) {
      // Whoever made the connection may have sent more behind its Hello: that is lost also when no answer came.
      peer->broke = true;
      if (introduced) {
        --peer->links;
        if (link->asked_) --peer->request_links;
        settled = is_settled_locked(*peer);
      }
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
