#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/event_loop.h"
#include "gradwire/transport/shm/doorbell.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/shm_address.h"
#include "gradwire/transport/shm/shm_context.h"
#include "gradwire/transport/shm/shm_handshake.h"
#include "gradwire/transport/shm/shm_receiver.h"
#include "gradwire/transport/shm/shm_sender.h"
#include "gradwire/transport/transport.h"

namespace gradwire::transport {

// The part of a connection that the loop polls while it is active: the incoming ring, and the room in the
// outgoing ring. It has data only between attach and detach, and may outlive the connection. Used only by the
// loop's driver.
class RingWatch : public Pollable {
 public:
  // Called when the connection is established.
  void attach_in_loop(ShmReceiver& receiver, ShmSender& sender) {
    receiver_ = &receiver;
    sender_ = &sender;
  }
  // Called when the connection is closed.
  void detach_in_loop() { receiver_ = nullptr; }

  bool poll_in_loop() override {
    if (receiver_ == nullptr) return false;
    bool any = receiver_->poll_ring_in_loop();
    // The received data may have closed the connection.
    if (receiver_ != nullptr && sender_->blocked() && sender_->write_queued()) any = true;
    return any;
  }
  void failed_in_loop(const absl::Status& error) override {
    if (receiver_ != nullptr) receiver_->failed_in_loop(error);
  }
  void arm_in_loop() override {
    if (receiver_ == nullptr) return;
    receiver_->arm_in_loop();
    sender_->arm_in_loop();
  }
  void disarm_in_loop() override {
    if (receiver_ == nullptr) return;
    receiver_->disarm_in_loop();
    sender_->disarm_in_loop();
  }
  bool has_data_in_loop() override {
    return receiver_ != nullptr && (receiver_->has_data_in_loop() || sender_->has_data_in_loop());
  }

 private:
  ShmReceiver* receiver_ = nullptr;
  ShmSender* sender_ = nullptr;
};

// One end of a connection through shared memory. It consists of a handshake, which establishes the
// connection, a receiver and a sender, each with its ring.
//
// Reading, timers and callbacks happen only on the loop's driver. Writing happens on the sender's thread
// (shm_sender.h). A flush lasts until the queue has been written to the ring; the peer finds the data there
// even after this end is gone.
class ShmConnection : public LoopConnection, public EventHandler {
 public:
  ShmConnection(std::shared_ptr<ShmContext> context, std::string peer_address);

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override { return sender_.send(std::move(message)); }
  void capture(uint64_t ticket) override { sender_.capture(ticket); }
  bool borrows(uint64_t ticket) override { return sender_.borrows(ticket); }
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return sender_.allocate(size); }
  std::size_t queued_bytes() override { return sender_.queued_bytes(); }
  NoRoom no_room() const override { return sender_.no_room(); }
  uint64_t bytes_arrived() const override { return receiver_.bytes_arrived(); }
  // The handshake lets only processes of allowed users pass.
  security::PeerIdentity peer() const override { return {.proof = security::PeerIdentity::Proof::kUser}; }

  // Tries to connect until `deadline`.
  void connect_in_loop(ShmAddress address, std::shared_ptr<ConnectionListener> listener, absl::Time deadline);
  // Takes an accepted socket. After the hello of the peer, `on_accept` chooses the listener.
  void accept_in_loop(Descriptor socket, std::shared_ptr<const Transport::AcceptHandler> on_accept);

 private:
  // EventHandler
  void on_events_in_loop(uint32_t) override { receiver_.read_socket_in_loop(); }
  void failed_in_loop(const absl::Status& error) override { fail_in_loop(error); }
  bool expects_more_events() const override { return false; }
  const Pollable* pollable() const override { return watch_.get(); }

  // LoopConnection
  void refuse_sends(const absl::Status& reason) override { sender_.refuse(reason); }
  void flush_in_loop() override;
  void release_in_loop(const absl::Status& reason) override;

  void established_in_loop(ShmHandshake::Outcome outcome);

  const std::shared_ptr<ShmContext> context_;
  const std::shared_ptr<ControlSocket> socket_ = std::make_shared<ControlSocket>();
  const std::shared_ptr<RingWatch> watch_ = std::make_shared<RingWatch>();
  Doorbell doorbell_;
  // The blocks that the peer sends. The receiver makes buffers of them, and the sender may send them back.
  ArenaPeer peer_arena_;
  ShmSender sender_;

  // The members below are used only by the loop's driver.
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  ShmHandshake handshake_;
  ShmReceiver receiver_;
  uint64_t handler_id_ = 0;
  bool connected_ = false;
};

}  // namespace gradwire::transport
