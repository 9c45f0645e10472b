#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "gradwire/base/copy/adaptive_copy.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/shm/doorbell.h"
#include "gradwire/transport/shm/memory/arena_owner.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_producer.h"
#include "gradwire/transport/shm/outgoing.h"
#include "gradwire/transport/shm/shm_context.h"

namespace gradwire::transport {

// The sending side of a connection through shared memory.
//
// send() writes into the ring on the sender's thread, under the lock. A message that finds no room waits in a
// queue; the loop's driver writes it when the reader has made room. Large buffers are copied into the arena
// before that, without the lock. Thread-safe except for the methods for the loop's driver. It is a part of
// its connection.
class ShmSender {
 public:
  // `peer_arena`: the blocks that the peer has sent, which may be sent back to it. `watch` is activated after
  // a send, because an answer is expected.
  ShmSender(LoopConnection& connection, ShmContext& context, std::shared_ptr<ControlSocket> socket,
            Doorbell& doorbell, const ArenaPeer& peer_arena, std::shared_ptr<Pollable> watch);

  // The methods of Connection.
  absl::StatusOr<uint64_t> send(Message&& message);
  void capture(uint64_t ticket);
  bool borrows(uint64_t ticket);
  absl::StatusOr<Buffer> allocate(std::size_t size);
  std::size_t queued_bytes();
  Connection::NoRoom no_room() const;

  // Called when the connection is established: the queue may be written. The arena is limited to
  // `max_arena_bytes`.
  void start_in_loop(RingProducer ring, uint64_t max_arena_bytes);
  // From now on send() fails; the first reason wins.
  void refuse(const absl::Status& reason);
  // As refuse(), and drops the queue, the ring and the arena.
  void end_in_loop(const absl::Status& reason);
  // The arena from which this end sends; nullptr before start_in_loop(). It lives as long as the connection.
  ArenaOwner* arena() const { return arena_.load(std::memory_order_acquire); }
  // Whether the queue is empty.
  bool drained();

  // Writes the queue as far as the ring has room. Returns whether it wrote anything.
  bool write_queued();

  // Whether the queue waits for room in the ring. The other methods are those of Pollable: the loop polls for
  // room.
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  void arm_in_loop();
  void disarm_in_loop() { polled_.store(true); }
  bool has_data_in_loop();

 private:
  // Ends preparing_ at the end of the scope.
  class Preparing;
  // Actions to perform after the lock has been released.
  struct Effects {
    bool published = false;
    bool ring = false;
    bool drained = false;
    bool broken = false;
    bool more = false;
    std::vector<Outgoing> written;
  };
  // Whether the message has large buffers that are not in the arena.
  bool has_large_buffers(const Outgoing& outgoing) const;
  void prepare(Outgoing& outgoing) noexcept;
  void fill_blocks(Outgoing& outgoing);
  // Finds a block that contains the bytes of the buffer, or copies them to one. nullopt if the arena has no
  // room.
  absl::optional<Outgoing::Block> block_for(ArenaOwner& arena, const Buffer& buffer);
  bool write_locked(Outgoing& outgoing, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void apply(Effects& effects) noexcept;
  void keep_trimming();
  void schedule_trim_in_loop();
  void trim_in_loop();

  LoopConnection& connection_;
  ShmContext& context_;
  const std::shared_ptr<ControlSocket> socket_;
  Doorbell& doorbell_;
  const ArenaPeer& peer_arena_;
  const std::shared_ptr<Pollable> watch_;

  // Used only by the loop's driver.
  bool started_ = false;
  // Made early, because the end of a connection must not need memory.
  std::deque<Outgoing> unsent_;
  uint64_t trim_timer_ = 0;

  Mutex mutex_;
  // The reason why send() fails, once the connection is closed.
  absl::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  OutgoingQueue queue_ ABSL_GUARDED_BY(mutex_);
  // Set while the connection is established.
  absl::optional<RingProducer> ring_ ABSL_GUARDED_BY(mutex_);
  // The room that the queue waits for, in bytes.
  std::size_t needed_room_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread is copying buffers of the queue's first message into the arena.
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar prepared_;

  // Copies into the arena. The peer reads the copies.
  SharedAdaptiveCopy copy_;

  // Set once, when the connection is established. It lives as long as the connection.
  std::shared_ptr<ArenaOwner> arena_storage_;
  std::atomic<ArenaOwner*> arena_{nullptr};
  // Bytes of the large buffers that were not put into the arena, and the time of the last one, in nanoseconds
  // since the epoch of Clock::system(). A buffer that waits in the queue and tries again counts each time.
  std::atomic<uint64_t> no_room_bytes_{0};
  std::atomic<int64_t> no_room_last_{0};
  // trim_in_loop() is scheduled.
  std::atomic<bool> trimming_{false};
  // The queue waits for room; and whether the loop polls for it (otherwise the reader must ring). Each side
  // writes its own flag first and then reads the other's.
  std::atomic<bool> blocked_{false};
  std::atomic<bool> polled_{false};
};

}  // namespace gradwire::transport
