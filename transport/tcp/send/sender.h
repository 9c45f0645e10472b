#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/limits.h"
#include "gradwire/security/secure_stream.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/send_batch.h"
#include "gradwire/transport/tcp/send/send_queue.h"
#include "gradwire/transport/tcp/wire/frame.h"
#include "gradwire/transport/tcp/wire/stripe_control.h"

namespace gradwire::transport {

// The sending side of a TCP connection: one lane (a queue and its socket) for the connection itself and one
// for each stripe.
//
// Any thread with data to write may write, one at a time for each socket, outside the lock: it (1) takes the
// pieces from the queue, (2) writes, (3) updates the queue. A capture or an end that finds a write in
// progress waits for that single system call, which does not block. Thread-safe. It is a part of its
// connection, which owns the sockets and calls end() before it closes them.
//
// Without memory for a task of the loop, the thread that would post it goes on with its work.
class TcpSender : public SendBatch::Member {
 public:
  // Buffers of at least `stripe_from_bytes` are sent on stripes, if there are any.
  TcpSender(LoopConnection& connection, const Limits& limits, uint64_t stripe_from_bytes);

  // As Connection::send(). Sets `want_stripes` if stripes would be useful and have not been requested yet.
  absl::StatusOr<uint64_t> send(Message& message, bool& want_stripes);
  void capture(uint64_t ticket);
  bool borrows(uint64_t ticket);
  std::size_t queued_bytes();

  // Appends bytes that do not belong to a message to the connection's own queue. The caller writes them with
  // write_queued().
  void push_bytes(absl::string_view bytes);
  // Sends a control frame. After kDrop, messages use no stripes.
  void send_control(StripeControl control);

  // From now on messages can be written to the socket, through `stream` unless it is nullptr.
  void start(int socket, security::SecureStream* stream);
  // From now on messages use a stripe on each of these sockets.
  void use_stripes(absl::Span<const int> sockets);
  // Removes the stripes and their unsent data.
  void remove_stripes();
  // Sets whether stripes have been requested; then no further message requests them.
  void set_stripes_wanted(bool yes);
  // Returns whether a message was large enough for stripes since the last call.
  bool take_sent_striped();

  // From now on send() fails; the first reason wins.
  void refuse(const absl::Status& reason);
  // As refuse(); also stops using the sockets and drops the unsent data.
  void end(const absl::Status& reason);
  // Whether the queues are empty.
  bool drained();
  // Why a socket has ended: the error that a read (an errno, or 0) or a write has found, or `closed` if the
  // peer has closed it.
  std::string cause_of_end(absl::string_view closed, int read_error = 0);

  // Called when the socket of this lane (0: the connection's own, then the stripes) has room.
  void writable_in_loop(std::size_t lane);
  // Writes the queued data, as far as the sockets have room.
  void write_queued();

  // SendBatch::Member
  void flush_batch() override;

 private:
  // The queue and the state of one socket.
  struct Lane {
    static constexpr absl::Duration kFirstPause = absl::Milliseconds(1);

    SendQueue queue;
    // -1 unless connected.
    int fd = -1;
    // Not used unless connected; nullptr: bytes travel as they are.
    security::SecureStream* stream = nullptr;
    // A thread is in the write system call.
    bool writing = false;
    // The socket is full, and epoll reports when it has room; or the kernel had no memory, and a timer ends.
    bool full = false;
    // The pause before the next write for which the kernel has no memory is repeated.
    absl::Duration pause = kFirstPause;
    // epoll has reported room while a thread was writing.
    bool became_writable = false;
    // Number of finished write system calls, for threads that wait for one.
    uint64_t write_count = 0;
  };

  void leave_to(SendBatch& batch);
  // Appends the message to the queues. Without memory it appends nothing, and throws.
  void push_locked(uint64_t ticket, Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void push_shares_locked(uint64_t ticket, const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns false if the connection is closed because no memory is left.
  bool capture_lane(std::size_t lane, uint64_t ticket);
  // As write_queued(), for the loop: until the time of its round is over (turns.h). A later round goes on.
  void write_in_loop();
  // Writes once to each socket. Returns whether there may be more to write.
  bool write_each_lane();
  // Writes once to this socket. Returns whether there may be more to write.
  bool write_once(std::size_t lane);
  // Begins the task that writes the queues, with `begin`, unless it has begun already and has not run.
  // Returns false if there is no memory for it.
  template <class Begin>
  bool leave_to_task(Begin begin);
  // Calls `post`, which reports to the loop what a write has found. Without memory for that, ends the socket.
  void report(absl::FunctionRef<void()> post);
  // Notes that the socket has room. Returns whether the caller must write.
  bool note_room(std::size_t lane);
  // Writes to this socket after a pause.
  void write_later(std::size_t lane, absl::Duration pause);
  // Stops all writing.
  void forget_sockets_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the write in progress.
  void await_write_locked(std::size_t lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool drained_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LoopConnection& connection_;
  const Limits limits_;

  Mutex mutex_;
  // The reason why send() fails, once the connection is closed.
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  // The lane of the connection's own socket, then those of its stripes.
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  // The stripes that the next message may use.
  Striping striping_ ABSL_GUARDED_BY(mutex_);
  bool stripes_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool sent_striped_ ABSL_GUARDED_BY(mutex_) = false;
  // The batch of a thread will write the queue, unless the loop does it earlier.
  bool in_batch_ ABSL_GUARDED_BY(mutex_) = false;
  // The connection's own socket, from start() to end(); otherwise -1.
  int socket_ ABSL_GUARDED_BY(mutex_) = -1;
  // The error that a write has found, or 0.
  int failure_ ABSL_GUARDED_BY(mutex_) = 0;
  CondVar write_finished_;

  // The size of lanes_, for threads that do not hold the lock.
  std::atomic<std::size_t> lane_count_{1};
  // A task of the loop will write the queues.
  std::atomic<bool> write_posted_{false};
};

}  // namespace gradwire::transport
