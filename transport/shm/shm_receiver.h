#pragma once

#include <memory>

#include "absl/types/optional.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/shm/memory/arena_peer.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"
#include "gradwire/transport/shm/message_reader.h"
#include "gradwire/transport/shm/shm_context.h"

namespace gradwire::transport {

// The receiving side of a connection through shared memory: reads the other end's ring, and from the socket
// which segments its arena has; delivers the messages that are complete. Belongs to the loop's driver. Part
// of its connection.
class ShmReceiver {
 public:
  // `watch` is polled when the other end has rung.
  ShmReceiver(LoopConnection& connection, ShmContext& context, ControlSocket& socket,
              std::shared_ptr<Pollable> watch);

  void start_in_loop(RingConsumer ring) { ring_.emplace(std::move(ring)); }
  // Reads no more, and drops what has come in part.
  void end_in_loop();

  // Reads the packets that have come, or has others have their turn before the rest.
  void read_socket_in_loop();
  // The other end is gone: reads what it wrote before, and ends the connection.
  void peer_gone_in_loop();

  // The ring, as Pollable has them. REQUIRES: started, not ended.
  bool poll_ring_in_loop();
  void arm_in_loop() { ring_->arm(); }
  void disarm_in_loop() { ring_->disarm(); }
  bool has_data_in_loop() { return ring_->peek() != 0; }

 private:
  absl::Status take_packet_in_loop(ControlPacket& packet);
  absl::Status catch_up_in_loop();
  bool read_ring_in_loop(int messages);

  LoopConnection& connection_;
  ShmContext& context_;
  ControlSocket& socket_;
  const std::shared_ptr<Pollable> watch_;
  ArenaPeer peer_arena_;
  MessageReader reader_;
  absl::optional<RingConsumer> ring_;
};

}  // namespace gradwire::transport
