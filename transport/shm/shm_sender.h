#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/optional.h"
#include "gradwire/base/mutex.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/shm/memory/arena_owner.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_producer.h"
#include "gradwire/transport/shm/outgoing.h"
#include "gradwire/transport/shm/shm_context.h"

namespace gradwire::transport {

// The sending side of a connection through shared memory.
//
// Writing happens on the sender's thread, into the ring under the lock; what finds no room waits in a queue,
// which the loop's driver writes when the reader has made room. Large buffers are copied into the arena
// before that, without the lock. Thread-safe but for what is for the loop's driver. Part of its connection.
class ShmSender {
 public:
  // `watch` is activated when an answer is expected.
  ShmSender(LoopConnection& connection, ShmContext& context, std::shared_ptr<ControlSocket> socket,
            std::shared_ptr<Pollable> watch);

  // As Connection has them.
  absl::StatusOr<uint64_t> send(Message&& message);
  void capture(uint64_t ticket);
  absl::StatusOr<Buffer> allocate(std::size_t size);
  std::size_t queued_bytes();

  // The connection is established: what is queued may be written. The arena takes `max_arena_bytes`.
  void start_in_loop(RingProducer ring, uint64_t max_arena_bytes);
  // send() refuses from now on; the first reason wins.
  void refuse(const absl::Status& reason);
  // Refuses, and drops what is queued, the ring and the arena.
  void end_in_loop(const absl::Status& reason);
  // Nothing is queued.
  bool drained();

  // Writes what is queued; whether anything was.
  bool write_queued();

  // The queue waits for room in the ring. With the others, as Pollable has them, the loop looks for it.
  bool blocked() const { return blocked_.load(std::memory_order_relaxed); }
  void arm_in_loop();
  void disarm_in_loop() { polled_.store(true); }
  bool has_data_in_loop();

 private:
  // What is to be done when the lock has been released.
  struct Effects {
    bool published = false;
    bool ring = false;
    bool drained = false;
    bool broken = false;
    bool more = false;
    std::vector<Outgoing> written;
  };
  // That are not in the arena.
  bool has_large_buffers(const Outgoing& outgoing) const;
  void prepare(Outgoing& outgoing);
  bool write_locked(Outgoing& outgoing, Effects& effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void apply(Effects& effects);
  void keep_trimming();
  void schedule_trim_in_loop();
  void trim_in_loop();

  LoopConnection& connection_;
  ShmContext& context_;
  const std::shared_ptr<ControlSocket> socket_;
  const std::shared_ptr<Pollable> watch_;

  // Belong to the loop's driver.
  bool started_ = false;
  uint64_t trim_timer_ = 0;

  Mutex mutex_;
  // Why nothing more is taken.
  absl::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ticket_ ABSL_GUARDED_BY(mutex_) = 0;
  OutgoingQueue queue_ ABSL_GUARDED_BY(mutex_);
  // While the connection is established.
  absl::optional<RingProducer> ring_ ABSL_GUARDED_BY(mutex_);
  // How much room the queue waits for.
  std::size_t needed_room_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread copies buffers of the queue's first message into the arena.
  bool preparing_ ABSL_GUARDED_BY(mutex_) = false;
  CondVar prepared_;

  // Set once, when the connection is established; lives as long as the connection.
  std::shared_ptr<ArenaOwner> arena_storage_;
  std::atomic<ArenaOwner*> arena_{nullptr};
  // trim_in_loop() comes.
  std::atomic<bool> trimming_{false};
  // The queue waits for room. Whether the loop looks for it, or the reader has to ring: each side says its
  // own first, then looks at the other's.
  std::atomic<bool> blocked_{false};
  std::atomic<bool> polled_{false};
};

}  // namespace gradwire::transport
