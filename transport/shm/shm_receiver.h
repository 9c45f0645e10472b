#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/shm/doorbell.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"
#include "gradwire/transport/shm/message_reader.h"
#include "gradwire/transport/shm/shm_context.h"

namespace gradwire::transport {

// The receiving side of a connection through shared memory. It reads the peer's ring, learns the segments of
// the peer's arena from the socket, and delivers complete messages. Used only by the loop's driver, except
// for bytes_arrived(). It is a part of its connection.
class ShmReceiver {
 public:
  // `peer_arena`: where the segments of the peer are registered. `watch` is activated when the peer has rung.
  ShmReceiver(LoopConnection& connection, ShmContext& context, ControlSocket& socket, Doorbell& doorbell,
              ArenaPeer& peer_arena, std::shared_ptr<Pollable> watch);

  // `own_arena`: the arena from which this end sends. It must outlive the receiver.
  void start_in_loop(RingConsumer ring, ArenaOwner& own_arena) {
    ring_.emplace(std::move(ring));
    reader_.set_own_arena(own_arena);
  }
  // Stops reading and drops an incomplete message.
  void end_in_loop();

  // Reads the received packets until the time of the loop's round is over (turns.h). A later round goes on.
  void read_socket_in_loop();
  // Called when the peer is gone: reads the data that it wrote before, then closes the connection.
  void peer_gone_in_loop();

  // Number of bytes of messages that came in several records.
  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }

  // The methods of Pollable for the ring. REQUIRES: started, not ended.
  // A step of poll_ring_in_loop() has thrown.
  void failed_in_loop(const absl::Status& error);
  bool poll_ring_in_loop() { return !held_up() && read_ring_in_loop(/*all=*/false); }
  void arm_in_loop() { ring_->arm(); }
  void disarm_in_loop() { ring_->disarm(); }
  bool has_data_in_loop() { return !held_up() && ring_->peek() != 0; }

 private:
  static constexpr absl::Duration kFirstRetry = absl::Milliseconds(10);
  static constexpr absl::Duration kLongestRetry = absl::Seconds(1);

  enum class Taken {
    kPacket,
    kNothing,
    kEnd,
    // This process has no descriptor or memory left for the next packet, a segment. It is tried again later.
    kLater,
  };
  // Receives and handles the next packet.
  absl::StatusOr<Taken> take_packet_in_loop();
  absl::Status handle_packet_in_loop(const ControlPacket& packet);
  // Returns false if the socket could not be read to its end because of a shortage.
  absl::StatusOr<bool> catch_up_in_loop();
  // Schedules read_socket_in_loop(), because of a shortage.
  void read_socket_later_in_loop(const absl::Status& shortage);
  // Whether the next message needs a segment for which there was no descriptor or memory. Messages come in
  // their order, so the ring is not read until the segment is tried again.
  bool held_up() const { return held_record_ != 0 && retry_timer_ != 0; }
  bool read_ring_in_loop(bool all);
  // Counts a record that does not complete its message, and announces the message to the listener, once.
  void count_part_in_loop(uint64_t bytes);

  LoopConnection& connection_;
  ShmContext& context_;
  ControlSocket& socket_;
  Doorbell& doorbell_;
  const std::shared_ptr<Pollable> watch_;
  ArenaPeer& peer_arena_;
  MessageReader reader_;
  absl::optional<RingConsumer> ring_;
  // The record that waits for a segment, as it was when it was read first; or 0.
  uint64_t held_record_ = 0;
  // The packet that is being handled. It stays if it is a segment that cannot be mapped now.
  absl::optional<ControlPacket> pending_;
  uint64_t retry_timer_ = 0;
  absl::Duration retry_pause_ = kFirstRetry;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
