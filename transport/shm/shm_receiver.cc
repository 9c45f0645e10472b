#include "gradwire/transport/shm/shm_receiver.h"

#include <cstdint>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

// Of one connection before the others get their turn.
constexpr int kPacketsPerTurn = 64;
constexpr int kMessagesPerTurn = 32;

}  // namespace

ShmReceiver::ShmReceiver(LoopConnection& connection, ShmContext& context, ControlSocket& socket,
                         std::shared_ptr<Pollable> watch)
    : connection_(connection),
      context_(context),
      socket_(socket),
      watch_(std::move(watch)),
      peer_arena_(context.options.max_arena_bytes),
      reader_(context.options.limits, *context.pool, peer_arena_) {}

void ShmReceiver::end_in_loop() {
  ring_.reset();
  reader_.reset();
}

void ShmReceiver::read_socket_in_loop() {
  ControlPacket packet;
  for (int turn = 0; turn < kPacketsPerTurn; ++turn) {
    absl::Status status;
    switch (socket_.receive(packet)) {
      case ControlSocket::Receipt::kPacket:
        status = take_packet_in_loop(packet);
        break;
      case ControlSocket::Receipt::kNothing:
        // It was rung, most likely: more may follow soon.
        connection_.loop().activate(watch_);
        watch_->poll_in_loop();
        return;
      case ControlSocket::Receipt::kEnd:
        peer_gone_in_loop();
        return;
      case ControlSocket::Receipt::kInvalid:
        status = absl::InvalidArgumentError("what came is no packet");
        break;
    }
    if (!status.ok()) {
      connection_.fail_in_loop(status);
      return;
    }
  }
  // Others have their turn; the edge that was told will not be told again.
  connection_.loop().post([this, connection = connection_.shared_from_this()] { read_socket_in_loop(); });
}

absl::Status ShmReceiver::take_packet_in_loop(ControlPacket& packet) {
  if (packet.is_doorbell()) return absl::OkStatus();
  if (const absl::optional<SegmentPacket> segment = packet.as<SegmentPacket>(1)) {
    return peer_arena_.add(*segment, packet.descriptors[0]);
  }
  if (const absl::optional<DropPacket> drop = packet.as<DropPacket>(0))
    return peer_arena_.drop(drop->segment);
  return absl::InvalidArgumentError("what came is no packet");
}

// A segment is announced before the message that uses it, but through the socket.
absl::Status ShmReceiver::catch_up_in_loop() {
  ControlPacket packet;
  // As many as fit into a socket, with room to spare: a peer that goes on writing must not keep this end
  // reading.
  for (int packets = 0; packets < 100'000; ++packets) {
    switch (socket_.receive(packet)) {
      case ControlSocket::Receipt::kPacket:
        GRADWIRE_RETURN_IF_ERROR(take_packet_in_loop(packet));
        break;
      case ControlSocket::Receipt::kNothing:
        return absl::OkStatus();
      case ControlSocket::Receipt::kEnd:
        // It is found again when the ring has been read.
        connection_.loop().post(
            [this, connection = connection_.shared_from_this()] { read_socket_in_loop(); });
        return absl::OkStatus();
      case ControlSocket::Receipt::kInvalid:
        return absl::InvalidArgumentError("what came is no packet");
    }
  }
  return absl::InvalidArgumentError("packets come without end");
}

void ShmReceiver::peer_gone_in_loop() {
  // Another process could still write to the ring: once around it is all there can be.
  if (ring_.has_value()) read_ring_in_loop(INT32_MAX);
  connection_.lost_in_loop(reader_.in_message() ? "the other end closed it in the middle of a message"
                                                : "the other end closed it");
}

bool ShmReceiver::poll_ring_in_loop() { return read_ring_in_loop(kMessagesPerTurn); }

// At most once around the ring.
bool ShmReceiver::read_ring_in_loop(int messages) {
  bool any = false;
  auto catch_up = [this] { return catch_up_in_loop(); };
  const uint64_t lines = ring_->line_count();
  for (uint64_t seen = 0; messages > 0 && seen < lines && ring_.has_value();) {
    const uint64_t word = ring_->peek();
    if (word == 0) break;
    any = true;
    const RecordWord record = RecordWord::decode(word);
    seen += lines_of(record.length);
    absl::StatusOr<bool> complete = false;
    if (!connection_.close_called()) {
      if (!reader_.in_message()) reader_.set_max_message_bytes(connection_.listener().max_message_bytes());
      complete = reader_.read(*ring_, record, catch_up);
    } else if (record.length > ring_->max_payload()) {
      complete = absl::InvalidArgumentError("what came is no record");
    }
    if (!complete.ok()) {
      connection_.fail_in_loop(complete.status());
      return true;
    }
    if (ring_->release(record.length)) {
      context_.counters->doorbells.fetch_add(1, std::memory_order_relaxed);
      socket_.ring();
    }
    if (!*complete) continue;
    --messages;
    Message message = reader_.take();
    if (!message.buffers.empty()) context_.tend_pool();
    if (!connection_.close_called()) connection_.listener().on_message(connection_, std::move(message));
  }
  return any;
}

}  // namespace gradwire::transport
