#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/send_batch.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/tcp/send/send_queue.h"
#include "gradwire/transport/tcp/stripe_control.h"

namespace gradwire::transport {

// The sending side of a TCP connection: a queue for its socket and one for each stripe.
//
// Writing happens on whichever thread has something to write, one at a time for each socket, outside the
// lock: it takes the pieces from the queue, writes, and then updates the queue. A capture or an end that
// finds a write under way waits for that one system call, which does not block. Thread-safe. Part of its
// connection, which owns the sockets and ends their use here before it closes them.
class TcpSender : public SendBatch::Member {
 public:
  // Buffers from `stripe_from_bytes` on travel on stripes, if there are any.
  TcpSender(LoopConnection& connection, const Limits& limits, uint64_t stripe_from_bytes);

  // As Connection::send. `want_stripes`: set when they would be of use and nobody has asked for them yet.
  absl::StatusOr<uint64_t> send(Message& message, bool& want_stripes);
  void capture(uint64_t ticket);
  std::size_t queued_bytes();

  // Puts bytes outside of messages into the connection's own queue; the caller writes them with
  // write_queued().
  void push_bytes(absl::string_view bytes);
  // Sends a control frame. With kDrop, later messages use no stripes.
  void send_control(StripeControl control);

  // Messages can be written from now on.
  void start(int socket);
  // Later messages use a stripe on each of these sockets.
  void use_stripes(absl::Span<const int> sockets);
  // Forgets the stripes, and what has not left on them.
  void remove_stripes();
  // Whether somebody has asked for stripes: nobody else does then.
  void set_stripes_wanted(bool yes);
  // Whether a message was large enough for stripes since the last call.
  bool take_sent_striped();

  // send() refuses from now on; the first reason wins.
  void refuse(const absl::Status& reason);
  // Refuses, forgets the sockets and drops what has not left.
  void end(const absl::Status& reason);
  // Nothing is queued.
  bool drained();

  // The socket of this queue (0: the connection's own, then the stripes) takes more.
  void writable_in_loop(std::size_t lane);
  // Writes what is queued, as far as the sockets take it.
  void write_queued();

  // SendBatch::Member
  void flush_batch() override;

 private:
  // The data for one socket.
  struct Lane {
    SendQueue queue;
    // -1 unless connected.
    int fd = -1;
    // A thread is in the system call that writes.
    bool writing = false;
    // The socket took no more; epoll reports when it does.
    bool full = false;
    // That was reported while a thread was writing.
    bool became_writable = false;
    // Counts the finished system calls that write, for those who wait for one.
    uint64_t write_count = 0;
  };

  void push_shares_locked(uint64_t ticket, const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False when the connection ends for want of memory.
  bool capture_lane(std::size_t lane, uint64_t ticket);
  // Writes once to this socket. True when there may be more to write.
  bool write_once(std::size_t lane);
  // Ends all writing.
  void forget_sockets_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the write that is under way.
  void await_write_locked(std::size_t lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool drained_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LoopConnection& connection_;
  const Limits limits_;

  Mutex mutex_;
  // Why nothing more is taken.
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  // The connection's own socket, and its stripes.
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  // The stripes that the next message may use.
  Striping striping_ ABSL_GUARDED_BY(mutex_);
  bool stripes_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool sent_striped_ ABSL_GUARDED_BY(mutex_) = false;
  // Some thread's batch writes what is queued, or the loop does before.
  bool in_batch_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar write_finished_;

  // The size of lanes_, for threads that do not hold the lock.
  std::atomic<std::size_t> lane_count_{1};
};

}  // namespace gradwire::transport
