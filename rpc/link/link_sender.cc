#include "gradwire/rpc/link/link_sender.h"

#include <utility>

namespace gradwire::rpc {

absl::StatusOr<uint64_t> LinkSender::send(const proto::Envelope& envelope,
                                          std::vector<transport::Buffer> buffers) {
  absl::StatusOr<uint64_t> ticket = send_now(envelope.SerializeAsString(), std::move(buffers));
  // A relaxed load may miss a message that another thread has just deferred. Its timer sends it.
  if (has_deferred_.load(std::memory_order_relaxed)) flush_deferred();
  return ticket;
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
  for (std::string& header : deferred) (void)send_now(std::move(header), {});
}

absl::StatusOr<uint64_t> LinkSender::send_now(std::string header, std::vector<transport::Buffer> buffers) {
  wait_until_opened();
  transport::Message message{std::move(header), std::move(buffers)};
  const std::size_t size = message.byte_size();
  absl::StatusOr<uint64_t> ticket = depart(std::move(message));
  if (ticket.ok()) {
    bytes_sent_.fetch_add(size, std::memory_order_relaxed);
    if (!sent_.load(std::memory_order_relaxed)) sent_.store(true, std::memory_order_relaxed);
  }
  return ticket;
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
