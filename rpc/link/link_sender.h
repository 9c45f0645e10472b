#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/timer_queue.h"
#include "gradwire/codec/encoded_tensors.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/link/parts/parts_in_flight.h"
#include "gradwire/rpc/metrics/peer_calls_handle.h"
#include "gradwire/rpc/transfers/message_watch.h"
#include "gradwire/transport/connection.h"

namespace gradwire::rpc {

// Whether a buffer of the message is borrowed: its bytes may change after the send unless the message's
// ticket is captured.
inline bool any_borrowed(const std::vector<transport::Buffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(), [](const transport::Buffer& buffer) {
    return buffer.sharing() == transport::Buffer::Sharing::kBorrowed;
  });
}

// Copies the bytes of borrowed buffers, for a message that is sent after its sender has gone on.
void own_bytes(std::vector<transport::Buffer>& buffers);

// The sending half of a link: it counts the messages that it sends, and collects messages that need not be
// sent at once. Thread-safe.
class LinkSender : public std::enable_shared_from_this<LinkSender> {
 public:
  static constexpr absl::Duration kDeferral = absl::Milliseconds(10);

  uint64_t number() const { return number_; }
  // Whether the connection has ended. A message that was sent on it, even successfully, may then be lost.
  bool closed() const { return closed_; }
  // Number of bytes that wait in the connection for the peer to read them; 0 if fewer than kUnreadGrain wait.
  uint64_t unread_bytes();
  static constexpr uint64_t kUnreadGrain = uint64_t{1} << 20;
  // Number of messages that were sent on this link (Departures).
  uint64_t departed() const { return departed_.load(); }
  // Bytes of these messages, and of those that have arrived; and Connection::no_room().
  struct Traffic {
    uint64_t sent = 0;
    uint64_t received = 0;
    transport::Connection::NoRoom no_room;
  };
  Traffic traffic() const {
    return {
        link_bytes_.load(std::memory_order_relaxed), bytes_read_.load(std::memory_order_relaxed),
        opened_.load(std::memory_order_acquire) ? connection_->no_room() : transport::Connection::NoRoom()};
  }
  // Bytes that the transport has not sent yet.
  std::size_t queued_bytes() const {
    return opened_.load(std::memory_order_acquire) ? connection_->queued_bytes() : 0;
  }

  // Sends an envelope; returns the transport's ticket. `answered`: the request that a Response answers, for
  // the log; nullptr if it is not known. Errors: as Connection::send().
  absl::StatusOr<uint64_t> send(const proto::Envelope& envelope, std::vector<transport::Buffer> buffers,
                                const proto::Request* answered = nullptr);
  // As above, with encoded tensors whose bytes are complete. Tensors that were handed over are kept until the
  // receiver has taken them, or the connection has ended. Refers to buffers that were sent ahead.
  absl::StatusOr<uint64_t> send_encoded(proto::Envelope& envelope, EncodedTensors&& tensors,
                                        const proto::Request* answered = nullptr);
  // Sends an envelope for which no thread waits. It is sent behind the next message, or kDeferral later, so
  // that the peer is not woken only for it. It may be lost with the link.
  void send_deferred(const proto::Envelope& envelope);
  // For parts of messages (PartsAhead). count_part() must be called before a part is sent, and returns false
  // over a limit; forget_parts() after the message that they belong to, or its end, was sent.
  uint64_t next_parted_message() { return next_parted_message_.fetch_add(1); }
  bool count_part(const PartsInFlight::Size& part, bool begins);
  void forget_parts(const PartsInFlight::Size& message);
  // Connection::capture and Connection::allocate.
  void capture(uint64_t ticket) { connection_->capture(ticket); }
  absl::StatusOr<transport::Buffer> allocate(std::size_t size);

  // Sends a serialised heartbeat if `forced`, or if nothing else was sent since the last call.
  void beat(const std::string& heartbeat, bool forced);
  // Sends a serialised Goodbye and closes the connection for `reason`.
  void part(std::string goodbye, const absl::Status& reason, absl::Duration flush);

  // The metrics of the calls whose answers are sent on this link. Synchronised by itself.
  PeerCallsHandle served_metrics;

 protected:
  // The first two must outlive it. `transfers` must not be nullptr.
  LinkSender(TimerQueue& timers, std::atomic<uint64_t>& bytes_sent, uint64_t number,
             std::shared_ptr<TransferWatch> transfers, std::string peer_name)
      : timers_(timers),
        transfers_(std::move(transfers)),
        peer_name_(std::move(peer_name)),
        bytes_sent_(bytes_sent),
        number_(number) {}
  ~LinkSender() = default;

  // Counts a message that has arrived, here and in `all`. Only for the transport's thread.
  void count_read(std::size_t size, std::atomic<uint64_t>& all) {
    if (transfers_->watches(size)) transfers_->received(number_);
    all.fetch_add(size, std::memory_order_relaxed);
    bytes_read_.store(bytes_read_.load(std::memory_order_relaxed) + size, std::memory_order_relaxed);
  }
  // Call when the connection has ended: its messages do not arrive any more.
  void drop_handed_over();

  // Returns when connect() has stored the connection and sent the Hello.
  void wait_until_opened() {
    if (opened_.load(std::memory_order_acquire)) return;
    opening_.lock();
    opening_.unlock();
  }

  TimerQueue& timers_;
  // Large messages on their way.
  const std::shared_ptr<TransferWatch> transfers_;
  // The worker at the other end, for the log. On an incoming connection it is set before a request or an
  // answer is sent.
  std::string peer_name_;
  // Locked while the connection is being made. Arriving messages and the end of the connection are handled
  // after that. The thread that makes the connection must not wait for the transport's thread while it holds
  // this lock.
  Mutex opening_;
  std::atomic<bool> opened_{false};
  // Set once, before opened_.
  std::shared_ptr<transport::Connection> connection_;
  // Whether the end of the connection has been noticed.
  std::atomic<bool> closed_{false};

 private:
  // Counts the message and hands it to the connection.
  absl::StatusOr<uint64_t> depart(transport::Message message);
  // A message, as the log describes it. A deferred message has no envelope any more.
  struct About {
    const proto::Envelope* envelope = nullptr;
    const proto::Request* answered = nullptr;
  };
  absl::StatusOr<uint64_t> send_now(std::string header, std::vector<transport::Buffer> buffers,
                                    const About& about);
  void flush_deferred();
  void keep(std::shared_ptr<HandedOver> handed_over);

  std::atomic<uint64_t>& bytes_sent_;
  const uint64_t number_;
  // Whether a message has been sent since the last call of beat().
  std::atomic<bool> sent_{false};
  std::atomic<uint64_t> departed_{0};
  // An upper bound of the unread bytes: those at the last question to the connection, and all sent since.
  std::atomic<uint64_t> unread_bound_{0};
  std::atomic<uint64_t> link_bytes_{0};
  std::atomic<uint64_t> bytes_read_{0};

  Mutex deferred_mutex_;
  std::vector<std::string> deferred_ ABSL_GUARDED_BY(deferred_mutex_);
  bool timer_scheduled_ ABSL_GUARDED_BY(deferred_mutex_) = false;
  std::atomic<bool> has_deferred_{false};

  std::atomic<uint64_t> next_parted_message_{1};
  Mutex parts_mutex_;
  PartsInFlight parts_in_flight_ ABSL_GUARDED_BY(parts_mutex_);

  Mutex handed_over_mutex_;
  std::vector<std::shared_ptr<HandedOver>> handed_over_ ABSL_GUARDED_BY(handed_over_mutex_);
  // Number of entries at which those that were taken are removed.
  std::size_t sweep_at_ ABSL_GUARDED_BY(handed_over_mutex_) = 8;
};

}  // namespace gradwire::rpc
