#pragma once

#include <cstdint>
#include <functional>

#include "absl/types/optional.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/memory/ring_consumer.h"
#include "gradwire/transport/shm/memory/ring_producer.h"
#include "gradwire/transport/shm/shm_address.h"
#include "gradwire/transport/shm/shm_context.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {

// Establishes a connection through shared memory:
//
//   1. The client connects the socket, and retries while the server's backlog is full.
//   2. Each end checks that the process of its peer belongs to an allowed user. Until then it sends nothing.
//   3. The client sends its hello, which passes the memory of its ring.
//   4. The server receives it and sends its own hello.
//   5. Each end calls `done` when it has the hello of its peer.
//
// Any failure closes the connection. Used only by the loop's driver. It is a part of its connection.
class ShmHandshake : public EventHandler {
 public:
  struct Outcome {
    RingProducer outgoing;
    RingConsumer incoming;
    // The part of this end's arena that the peer maps, in bytes.
    uint64_t max_arena_bytes;
  };
  using Done = std::function<void(Outcome outcome)>;

  ShmHandshake(LoopConnection& connection, ShmContext& context, ControlSocket& socket, Done done);

  void connect_in_loop(ShmAddress address, absl::Time deadline);
  void accept_in_loop(Descriptor accepted);
  // Ends the handshake: `done` is not called any more.
  void end_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override;
  bool expects_more_events() const override { return false; }

  void try_connect_in_loop();
  void cannot_connect_in_loop(absl::string_view cause, bool refused = false);
  // Returns OK if the process of the peer belongs to an allowed user.
  absl::Status check_peer_in_loop();
  // Returns false if it closed the connection.
  bool watch_in_loop();
  absl::Status send_hello_in_loop();
  // Handles the received hello.
  void take_hello_in_loop();
  absl::Status accept_hello_in_loop(const ControlPacket& packet);
  // Goes on later, because this process has no descriptor or memory left for the hello of the peer, or for
  // its own.
  void go_on_later_in_loop(const absl::Status& shortage);

  LoopConnection& connection_;
  ShmContext& context_;
  ControlSocket& socket_;
  const Done done_;
  // The address of the server; not set at the server.
  absl::optional<ShmAddress> address_;
  absl::Time deadline_;
  uint64_t timer_ = 0;
  uint64_t handler_id_ = 0;
  // The hello of the peer, until it is accepted.
  absl::optional<ControlPacket> hello_;
  // Why the handshake waits, if it does.
  absl::Status shortage_;
  uint64_t retry_timer_ = 0;
  // The ring that was passed to the peer, until the peer's hello arrives.
  absl::optional<RingProducer> own_ring_;
};

}  // namespace gradwire::transport
