#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "transport/connection.h"
#include "transport/tcp/address.h"
#include "transport/descriptor.h"
#include "transport/tcp/frame.h"
#include "transport/event_loop.h"
#include "transport/tcp/send_queue.h"
#include "transport/tcp/tcp_context.h"

namespace gradwire::transport {

// One end of a TCP connection.
//
// States: kConnecting (connect only) -> kOpen -> kClosing -> kClosed. kClosing is between close() and
// on_closed: it lasts until the queue has been written and the other end has read it, or the flush time is
// over. Any state may go to kClosed directly.
//
// Reading, timers and callbacks happen on the loop's driver alone. Writing happens on whichever thread has
// something to write, one at a time, outside the lock: it takes the pieces from the queue, writes, and then
// tells the queue. A capture or a close that finds a write under way waits for that one system call, which
// does not block.
class TcpConnection : public Connection,
                      public EventHandler,
                      public std::enable_shared_from_this<TcpConnection> {
 public:
  TcpConnection(std::shared_ptr<TcpContext> context, std::string peer_address);
  ~TcpConnection() override;

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  void capture(uint64_t ticket) override;
  void close(absl::Status reason, absl::Duration flush) override;
  std::string peer_address() const override { return peer_address_; }

  // Tries the candidates in order until `deadline`.
  void connect_in_loop(std::vector<SocketAddress> candidates, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Takes a socket that was accepted; messages can be sent from then on. None is received before
  // listen_in_loop.
  void adopt_in_loop(Descriptor socket);
  void listen_in_loop(std::shared_ptr<ConnectionListener> listener);

  // Ends the connection unless a flush is under way.
  void shut_down_in_loop();

 private:
  enum class State { kConnecting, kOpen, kClosing, kClosed };

  // EventHandler
  void on_events_in_loop(uint32_t events) override;

  // Connecting (tcp_connect.cc).
  void try_next_candidate_in_loop();
  void finish_candidate_in_loop();
  void candidate_failed_in_loop(std::string cause);
  void established_in_loop();

  // Reading (tcp_connection.cc).
  void read_in_loop(bool until_end);
  // What readv put into the parser's places and the scratch memory. False when the connection has ended.
  bool accept_bytes_in_loop(std::size_t in_places, absl::Span<const char> beyond);
  void deliver_in_loop();

  // Writing (tcp_write.cc).
  void write_queued();
  // Writes once. True when there may be more to write.
  bool write_once();
  void socket_writable_in_loop();
  void hand_over_writing();

  // Closing (tcp_connection.cc).
  void begin_close_in_loop(absl::Time deadline);
  void queue_drained_in_loop();
  void finish_in_loop(absl::Status reason);
  absl::Status unavailable(absl::string_view cause) const;

  const std::shared_ptr<TcpContext> context_;
  const std::string peer_address_;

  // Those below belong to the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  FrameParser parser_;
  bool connected_ = false;
  bool lingering_ = false;
  std::vector<SocketAddress> candidates_;
  std::size_t next_candidate_ = 0;
  absl::Time connect_deadline_;
  uint64_t candidate_timer_ = 0;
  uint64_t close_timer_ = 0;
  std::string last_connect_error_;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kConnecting;
  // Why it was closed, from the first close() or failure on.
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  SendQueue queue_ ABSL_GUARDED_BY(mutex_);
  // The socket for writing; -1 unless connected.
  int write_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  // A thread is in the system call that writes.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  // The socket took no more; the loop will hear when it does.
  bool socket_full_ ABSL_GUARDED_BY(mutex_) = false;
  // It was heard while a thread was writing.
  bool became_writable_ ABSL_GUARDED_BY(mutex_) = false;
  // Counts the finished system calls that write, for those who wait for one.
  uint64_t write_count_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar write_finished_;

  // close() was called: nothing is delivered any more.
  std::atomic<bool> close_called_{false};
};

// Sets what every connection's socket has: no delay, keepalive, a bound on unacknowledged bytes.
void set_connection_options(int socket, const TcpOptions& options);

}  // namespace gradwire::transport
