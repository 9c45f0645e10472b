#include "gradwire/rpc/link/link_sender.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

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
  MutexLock lock(handed_over_mutex_);
  // on_closed() may have come already. Then the message is not sent either.
  if (closed_) return;
  handed_over_.push_back(std::move(handed_over));
  if (handed_over_.size() < sweep_at_) return;
  std::erase_if(handed_over_, [](const std::shared_ptr<HandedOver>& entry) { return entry->taken(); });
  sweep_at_ = std::max<std::size_t>(8, 2 * handed_over_.size());
}

void LinkSender::drop_handed_over() {
  std::vector<std::shared_ptr<HandedOver>> dropped;
  MutexLock lock(handed_over_mutex_);
  dropped.swap(handed_over_);
}

void LinkSender::send_deferred(const proto::Envelope& envelope) {
  bool starts_timer = false;
  {
    MutexLock lock(deferred_mutex_);
    deferred_.push_back(envelope.SerializeAsString());
    has_deferred_.store(true, std::memory_order_relaxed);
    starts_timer = !std::exchange(timer_scheduled_, true);
  }
  if (!starts_timer) return;
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
}

void LinkSender::flush_deferred() {
  std::vector<std::string> deferred;
  {
    MutexLock lock(deferred_mutex_);
    deferred.swap(deferred_);
    has_deferred_.store(false, std::memory_order_relaxed);
  }
  // A deferred message may be lost with the link, so errors are ignored.
  for (std::string& header : deferred) (void)send_now(std::move(header), {}, {});
}

absl::StatusOr<uint64_t> LinkSender::send_now(std::string header, std::vector<transport::Buffer> buffers,
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
      Sending sending{[weak = weak_from_this(), end]() -> std::optional<uint64_t> {
                        const std::shared_ptr<LinkSender> link = weak.lock();
                        if (link == nullptr || link->closed()) return std::nullopt;
                        const uint64_t given = link->link_bytes_.load(std::memory_order_acquire);
                        return unsent_before(end, given, link->connection_->queued_bytes());
                      },
                      connection_->counts_whole_buffers()};
      watch_sending(*transfers_, {peer_name_, number_, size}, *about.envelope, about.answered,
                    std::move(sending));
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

absl::StatusOr<uint64_t> LinkSender::depart(transport::Message message) {
  // Counted before it is sent: a thread that reports the Departures after the send must not leave it out.
  departed_.fetch_add(1);
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  // A report in between may count this message. If the connection is closed, its end settles the report, else
  // the next message does.
  if (!ticket.ok()) departed_.fetch_sub(1);
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

void LinkSender::part(std::string goodbye, const absl::Status& reason, absl::Duration flush) {
  wait_until_opened();
  // Not counted by depart(): Arrivals counts neither Hello nor Goodbye.
  (void)connection_->send({std::move(goodbye), {}});
  connection_->close(reason, flush);
}

}  // namespace gradwire::rpc
