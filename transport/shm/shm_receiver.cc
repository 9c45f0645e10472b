#include "gradwire/transport/shm/shm_receiver.h"

#include <cstdint>
#include <utility>

#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

// The clock is read once for so many records: it costs a part of the time of a short one.
constexpr int kRecordsPerQuestion = 4;

}  // namespace

ShmReceiver::ShmReceiver(LoopConnection& connection, ShmContext& context, ControlSocket& socket,
                         ArenaPeer& peer_arena, std::shared_ptr<Pollable> watch)
    : connection_(connection),
      context_(context),
      socket_(socket),
      watch_(std::move(watch)),
      peer_arena_(peer_arena),
      reader_(context.options.limits, *context.pool, peer_arena_) {}

void ShmReceiver::end_in_loop() {
  ring_.reset();
  reader_.reset();
}

// The socket carries doorbells, announcements of segments, and the end of the peer. All data is in the
// ring, so an empty socket only means that the ring should be polled.
void ShmReceiver::read_socket_in_loop() {
  ControlPacket packet;
  Turns& turns = connection_.loop().turns_in_loop();
  for (bool first = true; first || !turns.spent(); first = false) {
    absl::Status status;
    switch (socket_.receive(packet)) {
      case ControlSocket::Receipt::kPacket:
        status = take_packet_in_loop(packet);
        break;
      case ControlSocket::Receipt::kNothing:
        // The event was most likely a doorbell: more data may follow soon.
        connection_.loop().activate(watch_);
        watch_->poll_in_loop();
        return;
      case ControlSocket::Receipt::kEnd:
        peer_gone_in_loop();
        return;
      case ControlSocket::Receipt::kInvalid:
        status = absl::InvalidArgumentError("malformed packet on the control socket");
        break;
    }
    if (!status.ok()) {
      connection_.fail_in_loop(status);
      return;
    }
  }
  // epoll does not report this edge again.
  turns.defer([this, connection = connection_.shared_from_this()] { read_socket_in_loop(); });
}

absl::Status ShmReceiver::take_packet_in_loop(ControlPacket& packet) {
  if (packet.is_doorbell()) return absl::OkStatus();
  if (const absl::optional<SegmentPacket> segment = packet.as<SegmentPacket>(1)) {
    return peer_arena_.add(*segment, packet.descriptors[0]);
  }
  if (const absl::optional<DropPacket> drop = packet.as<DropPacket>(0))
    return peer_arena_.drop(drop->segment);
  return absl::InvalidArgumentError("malformed packet on the control socket");
}

// Registers the announced segments. A segment is announced before the message that uses it, but through the
// socket, so the message may be read first.
absl::Status ShmReceiver::catch_up_in_loop() {
  ControlPacket packet;
  // The limit is above the number of packets that fit into a socket. It prevents a peer that keeps writing
  // from keeping this end busy indefinitely.
  for (int packets = 0; packets < 100'000; ++packets) {
    switch (socket_.receive(packet)) {
      case ControlSocket::Receipt::kPacket:
        GRADWIRE_RETURN_IF_ERROR(take_packet_in_loop(packet));
        break;
      case ControlSocket::Receipt::kNothing:
        return absl::OkStatus();
      case ControlSocket::Receipt::kEnd:
        // The end of the socket is handled after the ring has been read.
        connection_.loop().post(
            [this, connection = connection_.shared_from_this()] { read_socket_in_loop(); });
        return absl::OkStatus();
      case ControlSocket::Receipt::kInvalid:
        return absl::InvalidArgumentError("malformed packet on the control socket");
    }
  }
  return absl::InvalidArgumentError("too many packets on the control socket");
}

void ShmReceiver::peer_gone_in_loop() {
  // A process that shares the memory could still write to the ring. Valid data ends after one pass around the
  // ring.
  if (ring_.has_value()) read_ring_in_loop(/*all=*/true);
  connection_.lost_in_loop(reader_.in_message() ? "the peer closed the connection in the middle of a message"
                                                : "the peer closed the connection");
}

// Reads at most one pass around the ring. Unless `all`, it stops when the time of the loop's round is over.
// The loop polls the ring again in each round.
bool ShmReceiver::read_ring_in_loop(bool all) {
  Turns& turns = connection_.loop().turns_in_loop();
  auto catch_up = [this] { return catch_up_in_loop(); };
  const uint64_t lines = ring_->line_count();
  int records = 0;
  for (uint64_t seen = 0; seen < lines && ring_.has_value();) {
    const uint64_t word = ring_->peek();
    if (word == 0) break;
    if (!all && records > 0 && records % kRecordsPerQuestion == 0 && turns.spent()) break;
    ++records;
    // Use this copy of the word only: a hostile peer may change the word in the ring at any time.
    const RecordWord record = RecordWord::decode(word);
    seen += lines_of(record.length);
    absl::StatusOr<bool> complete = false;
    if (!connection_.close_called()) {
      if (!reader_.in_message()) reader_.set_max_message_bytes(connection_.listener().max_message_bytes());
      complete = reader_.read(*ring_, record, catch_up);
      // After close() records are skipped, so that the peer can finish writing. Their length must be valid
      // for that, too.
    } else if (record.length > ring_->max_payload()) {
      complete = absl::InvalidArgumentError("malformed record in the ring");
    }
    if (!complete.ok()) {
      connection_.fail_in_loop(complete.status());
      return true;
    }
    // Release the record before its message is delivered: the listener may take long.
    if (ring_->release(record.length)) {
      context_.counters->doorbells.fetch_add(1, std::memory_order_relaxed);
      socket_.ring();
    }
    if (!*complete) {
      if (!connection_.close_called()) count_part_in_loop(record.length);
      continue;
    }
    Message message = reader_.take();
    if (!message.buffers.empty()) context_.trim_pool();
    // The listener may close the connection, which resets ring_: the loop checks it.
    if (!connection_.close_called()) connection_.listener().on_message(connection_, std::move(message));
  }
  return records > 0;
}

void ShmReceiver::count_part_in_loop(uint64_t bytes) {
  const auto count = [this](uint64_t more) {
    bytes_arrived_.store(bytes_arrived() + more, std::memory_order_relaxed);
  };
  count(bytes);
  if (!reader_.has_arriving()) return;
  const MessageReader::Arriving message = reader_.arriving();
  count(message.in_arena);
  connection_.listener().on_arriving(connection_, message.header, message.bytes, message.arrived);
}

}  // namespace gradwire::transport
