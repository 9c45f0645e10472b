#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/transport/connection.h"

namespace gradwire::rpc {

// Whether what a message carries may change unless its ticket is captured.
inline bool any_borrowed(const std::vector<transport::Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
}

// The half of a link that sends: counts what departs, and gathers what need not leave at once. Thread-safe.
class LinkSender : public std::enable_shared_from_this<LinkSender> {
 public:
  static constexpr absl::Duration kLate = absl::Milliseconds(10);

  uint64_t number() const { return number_; }
  // Whether what was sent on it, even successfully, may be lost.
  bool closed() const { return closed_; }
  // Messages that were sent here (Departures).
  uint64_t departed() const { return departed_.load(); }

  // Sends an envelope; returns the transport's ticket. Errors as Connection::send.
  absl::StatusOr<uint64_t> send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers);
  // The same for what nobody waits for: it goes with the next message, or kLate later, so that it wakes
  // nobody at the other end in vain. It may be lost with the link.
  void send_late(const proto::Envelope& envelope);
  // Connection::capture and Connection::allocate.
  void capture(uint64_t ticket) { connection_->capture(ticket); }
  absl::StatusOr<transport::Buffer> allocate(std::size_t size);

  // Sends a serialised heartbeat if it has `news`, or nothing else was sent since the last call.
  void beat(const std::string& heartbeat, bool news);
  // Sends a serialised Goodbye and closes the connection for `reason`.
  void part(std::string goodbye, const absl::Status& reason, absl::Duration flush);

 protected:
  // Both must outlive it.
  LinkSender(TimerQueue& timers, std::atomic<uint64_t>& bytes_sent, uint64_t number)
      : timers_(timers), bytes_sent_(bytes_sent), number_(number) {}
  ~LinkSender() = default;

  // Returns when the one who makes this connection knows it, and has sent Hello.
  void wait_until_opened() {
    if (opened_.load(std::memory_order_acquire)) return;
    opening_.lock();
    opening_.unlock();
  }

  TimerQueue& timers_;
  // Held while the connection is being made: what arrives on it, and its end, come after that. Nothing that
  // the maker does meanwhile waits for the transport's thread.
  Mutex opening_;
  std::atomic<bool> opened_{false};
  // Set once, before opened_.
  std::shared_ptr<transport::Connection> connection_;
  // Its end has been noticed.
  std::atomic<bool> closed_{false};

 private:
  // Counts the message and hands it to the connection.
  absl::StatusOr<uint64_t> depart(transport::Message message);
  absl::StatusOr<uint64_t> send_now(std::string header, std::vector<transport::Buffer> buffers);
  void send_late_ones();

  std::atomic<uint64_t>& bytes_sent_;
  const uint64_t number_;
  // Since the last heartbeat was due.
  std::atomic<bool> sent_{false};
  std::atomic<uint64_t> departed_{0};

  Mutex late_mutex_;
  std::vector<std::string> late_ ABSL_GUARDED_BY(late_mutex_);
  bool late_timer_ ABSL_GUARDED_BY(late_mutex_) = false;
  std::atomic<bool> has_late_{false};
};

}  // namespace gradwire::rpc
