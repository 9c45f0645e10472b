#include "rpc/link.h"

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/log.h"
#include "rpc/codec_containers.h"
#include "rpc/peers.h"

// How Peers treats what arrives on a link, and its end.
namespace gradwire::rpc {

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
  if (Peer* peer = active_.load(std::memory_order_acquire)) {
    if (peers_.deliver(*peer, *this, envelope, message.buffers)) return;
  }
  peers_.handle(shared_from_this(), std::move(envelope), std::move(message.buffers));
}

absl::StatusOr<uint64_t> Link::send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers) {
  wait_until_opened();
  transport::Message message{envelope.SerializeAsString(), std::move(buffers)};
  const std::size_t size = message.byte_size();
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  if (ticket.ok()) peers_.bytes_sent_.fetch_add(size, std::memory_order_relaxed);
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
      return true;
    case proto::Envelope::kResponse:
      sink_.on_response(peer.worker, std::move(envelope), std::move(buffers));
      return true;
    case proto::Envelope::kCancel:
      sink_.on_cancel(peer.worker, link.number(), (*envelope)->cancel().call_id());
      return true;
    default:
      return false;
  }
}

void Peers::handle(const std::shared_ptr<Link>& link, EnvelopePtr envelope,
                   std::vector<transport::Buffer> buffers) {
  {
    MutexLock lock(mutex_);
    if (stopping_) return;
    if (!ready_ || link->holds_) {
      // Others may be done joining, and call, before this worker has read the directory.
      if (!link->holds_) held_.push_back(link);
      link->holds_ = true;
      link->held_.emplace_back(std::move(envelope), std::move(buffers));
      return;
    }
  }
  dispatch(link, std::move(envelope), std::move(buffers));
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
  absl::Status reason = said.ok() || absl::IsCancelled(said)
                            ? absl::UnavailableError(absl::StrCat("worker \"", name, "\" has left"))
                            : with_context(said, absl::StrCat("worker \"", name, "\" refuses this one"));
  link->connection_->close(with_worker(reason, name));
  lose(peer, reason);
}

absl::Status Peers::admit(const proto::Hello& hello, const std::shared_ptr<Link>& link) {
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat("worker \"", hello.name(),
                                                      "\" speaks protocol version ", hello.protocol_version(),
                                                      ", \"", self_.name, "\" speaks ", kProtocolVersion));
  }
  uint64_t timer = 0;
  bool answer = false;
  std::shared_ptr<Peer> peer;
  {
    MutexLock lock(mutex_);
    // Closed while its Hello waited for the directory.
    if (!links_.contains(link->number())) return absl::OkStatus();
    auto found = peers_.find(hello.id());
    if (found == peers_.end() || found->second->worker.name != hello.name() ||
        found->second->worker.incarnation != hello.incarnation()) {
      return absl::NotFoundError(absl::StrCat("worker \"", hello.name(), "\" (id ", hello.id(),
                                              ") is not the one that joined the group of \"", self_.name,
                                              "\""));
    }
    peer = found->second;
    if (link->peer_ != nullptr && link->peer_ != peer) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker \"", hello.name(), "\" answers in the place of \"", link->peer_->worker.name, "\""));
    }
    if (peer->lost) {
      return absl::AbortedError(absl::StrCat("worker \"", hello.name(), "\" was declared dead by \"",
                                             self_.name, "\" and must start anew"));
    }
    answer = link->peer_ == nullptr;
    if (answer && hello.to_incarnation() != self_.incarnation) {
      return absl::AbortedError(absl::StrCat("worker \"", self_.name, "\" came back as a new incarnation"));
    }
    link->peer_ = peer;
    link->introduced_ = true;
    // Behind what is held there is nothing to overtake: set_workers sets it then.
    if (!link->holds_) link->active_ = peer.get();
    std::swap(timer, link->hello_timer_);
    peer->probes = 0;
  }
  if (answer) introduce(*link, 0);
  {
    // Requests of this side follow its Hello.
    MutexLock lock(mutex_);
    if (peer->link == nullptr && peer->worker.id != self_.id && !peer->lost &&
        links_.contains(link->number())) {
      peer->link = link;
    }
  }
  if (timer != 0) timers_.cancel(timer);
  return absl::OkStatus();
}

void Peers::refuse(const std::shared_ptr<Link>& link, const absl::Status& reason) {
  log(LogLevel::kWarning, "connection with ", link->connection_->peer_address(),
      " refused: ", reason.message());
  proto::Envelope goodbye;
  status_to_proto(reason, *goodbye.mutable_goodbye()->mutable_reason());
  (void)link->connection_->send({goodbye.SerializeAsString(), {}});
  link->connection_->close(reason, absl::Seconds(1));
}

void Peers::on_closed(const std::shared_ptr<Link>& link, const absl::Status& reason) {
  std::shared_ptr<Peer> peer;
  uint64_t timer = 0;
  bool look_again = false;
  bool never_worked = false;
  {
    MutexLock lock(mutex_);
    link->active_ = nullptr;
    never_worked = !link->introduced_ && !stopping_;
    links_.erase(link->number());
    links_changed_.notify_all();
    std::swap(timer, link->hello_timer_);
    std::swap(peer, link->peer_);
    if (peer != nullptr) {
      if (peer->link == link) peer->link = nullptr;
      look_again = !stopping_ && !peer->lost && peer->link == nullptr;
    }
  }
  if (timer != 0) timers_.cancel(timer);
  if (peer == nullptr) return;
  sink_.on_link_closed(peer->worker, *link, reason);
  if (!look_again) return;
  // It broke by what came over it, or never worked: another transport may.
  const bool broken = never_worked || absl::IsInvalidArgument(reason);
  if (broken && !link->transport_.empty() && ways_to(*peer).size() > 1)
    give_up(*peer, link->transport_, reason);
  suspect(peer, reason);
}

void Peers::suspect(const std::shared_ptr<Peer>& peer, const absl::Status& reason) {
  int probes = 0;
  {
    MutexLock lock(mutex_);
    probes = ++peer->probes;
  }
  if (probes > kProbes) {
    lose(peer, absl::UnavailableError(
                   absl::StrCat("worker \"", peer->worker.name, "\" is dead: ", reason.message())));
    return;
  }
  // The first attempt comes at once: a killed worker is refused by its host without delay.
  const absl::Duration delay = probes == 1 ? absl::ZeroDuration() : absl::Milliseconds(100);
  timers_.schedule(timers_.clock().now() + delay, [this, peer] { probe(peer); });
}

void Peers::probe(const std::shared_ptr<Peer>& peer) {
  {
    MutexLock lock(mutex_);
    if (stopping_ || peer->lost) return;
  }
  absl::StatusOr<std::shared_ptr<Link>> link = link_to(peer);
  if (!link.ok()) suspect(peer, link.status());
}

void Peers::lose(const std::shared_ptr<Peer>& peer, absl::Status reason) {
  reason = with_worker(std::move(reason), peer->worker.name);
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    if (stopping_ || peer->lost) return;
    peer->lost = true;
    peer->lost_reason = reason;
    link.swap(peer->link);
  }
  if (link != nullptr) link->connection_->close(reason);
  sink_.on_worker_lost(peer->worker, reason);
}

}  // namespace gradwire::rpc
