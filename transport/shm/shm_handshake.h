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
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {

// Establishes a connection through shared memory:
//
//   1. the end that connects does so, again and again while the other has too many to accept;
//   2. each end checks that the other's process is of the same user;
//   3. the end that connected says hello, which hands over the memory of its ring;
//   4. the other end reads it and answers with its own hello;
//   5. each end, when it has the other's hello, calls `done`.
//
// Whatever fails ends the connection. Belongs to the loop's driver. Part of its connection.
class ShmHandshake : public EventHandler {
 public:
  struct Outcome {
    RingProducer outgoing;
    RingConsumer incoming;
    // How much of this end's arena the other maps.
    uint64_t max_arena_bytes;
  };
  using Done = std::function<void(Outcome outcome)>;

  ShmHandshake(LoopConnection& connection, const ShmOptions& options, ControlSocket& socket, Done done);

  void connect_in_loop(ShmAddress address, absl::Time deadline);
  void accept_in_loop(Descriptor accepted);
  // `done` is not called any more.
  void end_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  bool brings_more() const override { return false; }

  void try_connect_in_loop();
  void cannot_connect_in_loop(absl::string_view cause, bool refused = false);
  // False when the connection has ended.
  bool watch_in_loop();
  bool say_hello_in_loop();
  absl::Status hear_hello_in_loop(const ControlPacket& packet);

  LoopConnection& connection_;
  const ShmOptions& options_;
  ControlSocket& socket_;
  const Done done_;
  // Not set by the end that accepts.
  absl::optional<ShmAddress> address_;
  absl::Time deadline_;
  uint64_t timer_ = 0;
  uint64_t handler_id_ = 0;
  // Said, but not answered yet.
  absl::optional<RingProducer> own_ring_;
};

}  // namespace gradwire::transport
