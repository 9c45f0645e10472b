#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/send_batch.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/preface.h"
#include "gradwire/transport/tcp/send_queue.h"
#include "gradwire/transport/tcp/stripe.h"
#include "gradwire/transport/tcp/tcp_context.h"

namespace gradwire::transport {

// One end of a TCP connection: a socket, and stripes (stripe.h) while large buffers travel.
//
// States: kConnecting (connect only) -> kOpen -> kClosing -> kClosed. kClosing is between close() and
// on_closed: it lasts until the queue has been written and the other end has read it, or the flush time is
// over. Any state may go to kClosed directly.
//
// Reading, timers and callbacks happen on the loop's driver alone. Writing happens on whichever thread has
// something to write, one at a time for each socket, outside the lock: it takes the pieces from the queue,
// writes, and then tells the queue. A capture or a close that finds a write under way waits for that one
// system call, which does not block.
class TcpConnection : public Connection,
                      public EventHandler,
                      public SendBatch::Member,
                      public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address, const Preface::Token& token);
  ~TcpConnection() override;

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  void capture(uint64_t ticket) override;
  void close(absl::Status reason, absl::Duration flush) override;
  // Warm memory; it is sent from there as any other.
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override;
  uint64_t bytes_arrived() const override { return bytes_arrived_.load(std::memory_order_relaxed); }
  std::string peer_address() const override { return peer_address_; }

  // Makes the preface the first that is sent; for the end that connects.
  void begin_with_preface();
  // Tries the candidates in order until `deadline`.
  void connect_in_loop(std::vector<SocketAddress> candidates, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Takes a socket that was accepted; messages can be sent from then on. None is received before
  // listen_in_loop.
  void adopt_in_loop(Descriptor socket);
  void listen_in_loop(std::shared_ptr<ConnectionListener> listener);

  // Takes a stripe whose preface had this connection's token.
  void join_stripe_in_loop(const Preface& preface, Descriptor socket);
  void on_stripe_events_in_loop(Stripe& stripe, uint32_t events);

  // Ends the connection unless a flush is under way.
  void shut_down_in_loop();

  // SendBatch::Member
  void flush_batch() override;

 private:
  enum class State { kConnecting, kOpen, kClosing, kClosed };
  // kOff -> kStarting -> kReady -> kDropping -> kOff; kRefused: never again.
  enum class Stripes { kOff, kStarting, kReady, kDropping, kRefused };

  // What is written to one socket.
  struct Lane {
    SendQueue queue;
    // -1 unless connected.
    int fd = -1;
    // A thread is in the system call that writes.
    bool writing = false;
    // The socket took no more; the loop will hear when it does.
    bool full = false;
    // It was heard while a thread was writing.
    bool became_writable = false;
    // Counts the finished system calls that write, for those who wait for one.
    uint64_t write_count = 0;
  };

  // EventHandler
  void on_events_in_loop(uint32_t events) override;

  // Connecting (tcp_connect.cc).
  void try_next_candidate_in_loop();
  void finish_candidate_in_loop();
  void candidate_failed_in_loop(std::string cause);
  void established_in_loop();

  // Reading (tcp_read.cc).
  void read_in_loop(bool until_end);
  // Reads once. Whether there may be more.
  bool read_once_in_loop(bool until_end);
  // Puts what readv gave into messages. False when reading has to stop.
  bool accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond);
  void deliver_in_loop();

  // Stripes: opening, using and dropping them (tcp_stripes.cc).
  void want_stripes_in_loop();
  void open_stripes_in_loop();
  void stripe_connected_in_loop(Stripe& stripe);
  bool stripes_are_connecting_in_loop() const;
  bool watch_stripe_in_loop(const std::shared_ptr<Stripe>& stripe);
  void give_up_stripes_in_loop();
  void stripes_joined_in_loop();
  void control_in_loop(absl::string_view header);
  void use_stripes_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void send_control_locked(StripeControl control) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void watch_idle_stripes_in_loop();
  void drop_idle_stripes_in_loop();
  void dropped_in_loop();
  void remove_stripes_in_loop();

  // Reading stripes (tcp_stripe_read.cc).
  void place_shares_in_loop();
  bool shares_are_due_in_loop() const;
  void read_due_stripes_in_loop();
  void read_stripe_in_loop(Stripe& stripe);
  void stripe_ended_in_loop(Stripe& stripe);
  // While a frame awaits its shares: notes whether the stream ends behind it, and then bounds the wait.
  void note_end_in_loop(bool end_may_have_come);
  void watch_shares_in_loop();
  void resume_after_shares_in_loop();

  // Writing (tcp_write.cc).
  // What is to be done about a message that was queued, without the lock.
  struct Queued {
    // Nothing: the batch of this thread writes it.
    bool in_batch = false;
    // The loop is to write it too, if it comes first.
    bool post_flush = false;
    // Stripes would be of use.
    bool want_stripes = false;
  };
  Queued push_locked(uint64_t ticket, Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False when the connection ends for want of memory.
  bool capture_lane(std::size_t lane, uint64_t ticket);
  // Waits for the write that is under way.
  void await_write_locked(std::size_t lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void write_queued();
  // Writes once to this socket. True when there may be more to write.
  bool write_once(std::size_t lane);
  bool drained_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void socket_writable_in_loop(std::size_t lane);
  void hand_over_writing();

  // Closing (tcp_connection.cc).
  void begin_close_in_loop(absl::Time deadline);
  void queue_drained_in_loop();
  void finish_in_loop(absl::Status reason);
  absl::Status unavailable(absl::string_view cause) const;

  const std::shared_ptr<TcpContext> context_;
  const std::string peer_address_;
  const Preface::Token token_;

  // Those below belong to the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  FrameParser parser_;
  bool connected_ = false;
  // By the other end's connect.
  bool accepted_ = false;
  bool lingering_ = false;
  std::vector<SocketAddress> candidates_;
  std::atomic<uint64_t> bytes_arrived_{0};
  std::size_t next_candidate_ = 0;
  // Candidates whose host said that nobody listens.
  std::size_t refusals_ = 0;
  absl::Time connect_deadline_;
  uint64_t candidate_timer_ = 0;
  uint64_t close_timer_ = 0;
  std::string last_connect_error_;

  // A message has come but for shares on stripes: nothing more is read until they have. What had been read behind it,
  // and whether the end of the stream may have come.
  bool awaits_shares_ = false;
  std::string read_ahead_;
  bool read_until_end_ = false;
  uint64_t share_reads_ = 0;
  uint64_t shares_timer_ = 0;

  Stripes stripes_state_ = Stripes::kOff;
  // In the order of their numbers, once all are there.
  std::vector<std::shared_ptr<Stripe>> stripes_;
  int stripes_expected_ = 0;
  absl::Time last_striped_;
  uint64_t stripe_timer_ = 0;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kConnecting;
  // Why it was closed, from the first close() or failure on.
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  // The connection's own socket, and its stripes.
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  // What the next message may use.
  Striping striping_ ABSL_GUARDED_BY(mutex_);
  bool stripes_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  // Since somebody looked.
  bool sent_striped_ ABSL_GUARDED_BY(mutex_) = false;
  // Some thread's batch writes what is queued, or the loop does before.
  bool in_batch_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar write_finished_;

  // Of lanes_, for those who hold no lock.
  std::atomic<std::size_t> lane_count_{1};
  // close() was called: nothing is delivered any more.
  std::atomic<bool> close_called_{false};
};

// Sets what every connection's socket has: no delay, keepalive, a bound on unacknowledged bytes.
void set_connection_options(int socket, const TcpOptions& options);

}  // namespace gradwire::transport
