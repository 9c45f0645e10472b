// The part of ShmConnection that reads: the socket, and the other end's ring.

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/shm/shm_connection.h"

namespace gradwire::transport {
namespace {

// Of one connection before the others get their turn.
constexpr int kPacketsPerTurn = 64;
constexpr int kMessagesPerTurn = 32;

}  // namespace

void ShmConnection::on_events_in_loop(uint32_t) { read_socket_in_loop(); }

void ShmConnection::read_socket_in_loop() {
  ControlPacket packet;
  for (int turn = 0; turn < kPacketsPerTurn; ++turn) {
    switch (socket_->receive(packet)) {
      case ControlSocket::Receipt::kPacket: {
        if (!connected_) {
          hear_hello_in_loop(packet);
          if (!connected_) return;
          continue;
        }
        const absl::Status status = take_packet_in_loop(packet);
        if (status.ok()) continue;
        finish_in_loop(with_context(status, absl::StrCat("connection with ", peer_address_)));
        return;
      }
      case ControlSocket::Receipt::kNothing:
        if (!connected_ || !incoming_.has_value()) return;
        // It was rung, most likely: more may follow soon.
        context_->loop->heat(pollable_);
        poll_ring_in_loop();
        return;
      case ControlSocket::Receipt::kEnd:
        peer_gone_in_loop();
        return;
      case ControlSocket::Receipt::kInvalid:
        finish_in_loop(absl::InvalidArgumentError(
            absl::StrCat("connection with ", peer_address_, ": what came is no packet")));
        return;
    }
  }
  // Others have their turn; the edge that was told will not be told again.
  context_->loop->post([self = shared_from_this()] { self->read_socket_in_loop(); });
}

absl::Status ShmConnection::take_packet_in_loop(ControlPacket& packet) {
  if (packet.is_doorbell()) return absl::OkStatus();
  if (const absl::optional<SegmentPacket> segment = packet.as<SegmentPacket>(1)) {
    return peer_arena_.add(*segment, packet.descriptors[0]);
  }
  if (const absl::optional<DropPacket> drop = packet.as<DropPacket>(0))
    return peer_arena_.drop(drop->segment);
  return absl::InvalidArgumentError("what came is no packet");
}

// A segment is announced before the message that uses it, but through the socket.
absl::Status ShmConnection::catch_up_in_loop() {
  ControlPacket packet;
  // As many as fit into a socket, with room to spare: a peer that goes on writing must not keep this end reading.
  for (int packets = 0; packets < 100'000; ++packets) {
    switch (socket_->receive(packet)) {
      case ControlSocket::Receipt::kPacket:
        GRADWIRE_RETURN_IF_ERROR(take_packet_in_loop(packet));
        break;
      case ControlSocket::Receipt::kNothing:
        return absl::OkStatus();
      case ControlSocket::Receipt::kEnd:
        // It is found again when the ring has been read.
        context_->loop->post([self = shared_from_this()] { self->read_socket_in_loop(); });
        return absl::OkStatus();
      case ControlSocket::Receipt::kInvalid:
        return absl::InvalidArgumentError("what came is no packet");
    }
  }
  return absl::InvalidArgumentError("packets come without end");
}

void ShmConnection::peer_gone_in_loop() {
  if (incoming_.has_value()) {
    // What it wrote before it went. Another process could still write there: once around the ring is all there can be.
    read_ring_in_loop(INT32_MAX, incoming_->line_count());
  }
  const char* const cause =
      reader_.in_message() ? "the other end closed it in the middle of a message" : "the other end closed it";
  finish_in_loop(unavailable(cause));
}

bool ShmConnection::poll_ring_in_loop() {
  if (!incoming_.has_value()) return false;
  bool any = read_ring_in_loop(kMessagesPerTurn, incoming_->line_count());
  if (blocked_.load(std::memory_order_relaxed) && write_queued()) any = true;
  return any;
}

bool ShmConnection::read_ring_in_loop(int messages, uint64_t lines) {
  bool any = false;
  auto catch_up = [this] { return catch_up_in_loop(); };
  for (uint64_t seen = 0; messages > 0 && seen < lines && incoming_.has_value();) {
    const uint64_t word = incoming_->peek();
    if (word == 0) break;
    any = true;
    const RecordWord record = RecordWord::decode(word);
    seen += lines_of(record.length);
    absl::StatusOr<bool> complete = false;
    if (!close_called_.load(std::memory_order_relaxed)) {
      if (!reader_.in_message()) reader_.set_max_message_bytes(listener_->max_message_bytes());
      complete = reader_.read(*incoming_, record, catch_up);
    } else if (record.length > incoming_->max_payload()) {
      complete = absl::InvalidArgumentError("what came is no record");
    }
    if (!complete.ok()) {
      finish_in_loop(with_context(complete.status(), absl::StrCat("connection with ", peer_address_)));
      return true;
    }
    if (incoming_->release(record.length)) {
      context_->counters->doorbells.fetch_add(1, std::memory_order_relaxed);
      socket_->ring();
    }
    if (!*complete) continue;
    --messages;
    Message message = reader_.take();
    if (!message.buffers.empty()) context_->tend_pool();
    if (!close_called_.load(std::memory_order_relaxed)) listener_->on_message(*this, std::move(message));
  }
  return any;
}

void ShmConnection::arm_ring_in_loop() {
  if (!incoming_.has_value()) return;
  incoming_->arm();
  polled_.store(false);
  if (!blocked_.load()) return;
  MutexLock lock(mutex_);
  if (outgoing_.has_value()) outgoing_->ask_for_room();
}

void ShmConnection::disarm_ring_in_loop() {
  if (!incoming_.has_value()) return;
  incoming_->disarm();
  polled_.store(true);
}

bool ShmConnection::ring_has_news_in_loop() {
  if (!incoming_.has_value()) return false;
  if (incoming_->peek() != 0) return true;
  if (!blocked_.load(std::memory_order_relaxed)) return false;
  MutexLock lock(mutex_);
  return outgoing_.has_value() && blocked_.load(std::memory_order_relaxed) &&
         (outgoing_->has_room(needed_room_) || outgoing_->broken());
}

}  // namespace gradwire::transport
