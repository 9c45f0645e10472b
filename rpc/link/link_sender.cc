#include "gradwire/rpc/link/link_sender.h"

#include <utility>

namespace gradwire::rpc {

absl::StatusOr<uint64_t> LinkSender::send(const proto::Envelope& envelope,
                                          std::vector<transport::Buffer> buffers) {
  absl::StatusOr<uint64_t> ticket = send_now(envelope.SerializeAsString(), std::move(buffers));
  if (has_late_.load(std::memory_order_relaxed)) send_late_ones();
  return ticket;
}

void LinkSender::send_late(const proto::Envelope& envelope) {
  bool timer = false;
  {
    MutexLock lock(late_mutex_);
    late_.push_back(envelope.SerializeAsString());
    has_late_.store(true, std::memory_order_relaxed);
    timer = !std::exchange(late_timer_, true);
  }
  if (!timer) return;
  timers_.schedule(timers_.clock().now() + kLate, [weak = weak_from_this()] {
    std::shared_ptr<LinkSender> link = weak.lock();
    if (link == nullptr) return;
    {
      MutexLock lock(link->late_mutex_);
      link->late_timer_ = false;
    }
    link->send_late_ones();
  });
}

void LinkSender::send_late_ones() {
  std::vector<std::string> late;
  {
    MutexLock lock(late_mutex_);
    late.swap(late_);
    has_late_.store(false, std::memory_order_relaxed);
  }
  for (std::string& header : late) (void)send_now(std::move(header), {});
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
  // Before it leaves: whoever says afterwards what was sent must not leave it out.
  departed_.fetch_add(1);
  absl::StatusOr<uint64_t> ticket = connection_->send(std::move(message));
  if (!ticket.ok()) departed_.fetch_sub(1);
  return ticket;
}

absl::StatusOr<transport::Buffer> LinkSender::allocate(std::size_t size) {
  wait_until_opened();
  return connection_->allocate(size);
}

void LinkSender::beat(const std::string& heartbeat, bool news) {
  // A message sent since the last heartbeat has served as well.
  if (!sent_.exchange(false) || news) (void)depart({heartbeat, {}});
}

void LinkSender::part(std::string goodbye, const absl::Status& reason, absl::Duration flush) {
  wait_until_opened();
  (void)connection_->send({std::move(goodbye), {}});
  connection_->close(reason, flush);
}

}  // namespace gradwire::rpc
