#include "gradwire/transport/shm/shm_connection.h"

#include <utility>

namespace gradwire::transport {

ShmConnection::ShmConnection(std::shared_ptr<ShmContext> context, std::string peer_address)
    : LoopConnection(context, std::move(peer_address)),
      context_(std::move(context)),
      doorbell_(*this, socket_),
      peer_arena_(context_->options.max_arena_bytes),
      sender_(*this, *context_, socket_, doorbell_, peer_arena_, watch_),
      handshake_(*this, *context_, *socket_,
                 [this](ShmHandshake::Outcome outcome) { established_in_loop(std::move(outcome)); }),
      receiver_(*this, *context_, *socket_, doorbell_, peer_arena_, watch_) {}

void ShmConnection::connect_in_loop(ShmAddress address, std::shared_ptr<ConnectionListener> listener,
                                    absl::Time deadline) {
  listener_ = std::move(listener);
  if (begin_in_loop()) handshake_.connect_in_loop(std::move(address), deadline);
}

void ShmConnection::accept_in_loop(Descriptor socket,
                                   std::shared_ptr<const Transport::AcceptHandler> on_accept) {
  context_->connections.insert(shared_from_this());
  on_accept_ = std::move(on_accept);
  await_introduction_in_loop();
  handshake_.accept_in_loop(std::move(socket));
}

void ShmConnection::established_in_loop(ShmHandshake::Outcome outcome) {
  sender_.start_in_loop(std::move(outcome.outgoing), outcome.max_arena_bytes);
  receiver_.start_in_loop(std::move(outcome.incoming), *sender_.arena());
  watch_->attach_in_loop(receiver_, sender_);
  connected_ = true;
  // close() was called during the handshake, and nothing has to be flushed.
  if (close_called() && sender_.drained()) {
    finish_in_loop(absl::OkStatus());
    return;
  }
  if (const auto on_accept = std::exchange(on_accept_, nullptr)) {
    listener_ = (*on_accept)(shared_from_this());
    if (listener_ == nullptr) {
      finish_in_loop(absl::PermissionDeniedError("refused"));
      return;
    }
  }
  absl::StatusOr<uint64_t> id =
      loop().add_in_loop(socket_->descriptor(), keep<EventHandler>(this), /*both_ways=*/false);
  if (!id.ok()) {
    finish_in_loop(id.status());
    return;
  }
  handler_id_ = *id;
  // Messages that were sent before the connection was established.
  sender_.write_queued();
}

void ShmConnection::flush_in_loop() {
  if (connected_ && sender_.drained()) finish_in_loop(absl::OkStatus());
}

void ShmConnection::release_in_loop(const absl::Status& reason) {
  // The order matters: the sender and the loop stop using the socket before it is closed, and the loop
  // stops polling before the rings are unmapped.
  sender_.end_in_loop(reason);
  doorbell_.end_in_loop();
  handshake_.end_in_loop();
  loop().forget_in_loop(*watch_);
  watch_->detach_in_loop();
  if (handler_id_ != 0) loop().remove_in_loop(socket_->descriptor(), handler_id_);
  socket_->close();
  receiver_.end_in_loop();
  on_accept_.reset();
}

}  // namespace gradwire::transport
