#include "gradwire/transport/shm/shm_receiver.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::transport {
namespace {

// The clock is read once for so many records: it costs a part of the time of a short one.
constexpr int kRecordsPerQuestion = 4;

}  // namespace

ShmReceiver::ShmReceiver(LoopConnection& connection, ShmContext& context, ControlSocket& socket,
                         Doorbell& doorbell, ArenaPeer& peer_arena, std::shared_ptr<Pollable> watch)
    : connection_(connection),
      context_(context),
      socket_(socket),
      doorbell_(doorbell),
      watch_(std::move(watch)),
      peer_arena_(peer_arena),
      reader_(context.options.limits, *context.pool, peer_arena_) {}

void ShmReceiver::end_in_loop() {
  connection_.loop().cancel_in_loop(std::exchange(retry_timer_, 0));
  ring_.reset();
  reader_.reset();
  held_record_ = 0;
  pending_.reset();
}

// The socket carries doorbells, announcements of segments, and the end of the peer. All data is in the
// ring, so an empty socket only means that the ring should be polled.
void ShmReceiver::read_socket_in_loop() {
  Turns& turns = connection_.loop().turns_in_loop();
  for (bool first = true; first || !turns.spent(); first = false) {
    const absl::StatusOr<Taken> taken = take_packet_in_loop();
    if (!taken.ok()) {
      connection_.fail_in_loop(taken.status());
      return;
    }
    switch (*taken) {
      case Taken::kPacket:
        break;
      case Taken::kLater:
        // Behind the segment there may be a doorbell.
      case Taken::kNothing:
        // The event was most likely a doorbell: more data may follow soon.
        connection_.loop().activate(watch_);
        watch_->poll_in_loop();
        return;
      case Taken::kEnd:
        peer_gone_in_loop();
        return;
    }
  }
  // epoll does not report this edge again.
  connection_.defer_in_loop([this] { read_socket_in_loop(); });
}

// A segment for which this process has no descriptor or memory is not lost: the packet stays in the socket,
// or here if it could not be mapped. The messages that need the segment wait; other connections, and messages
// before those, go on.
absl::StatusOr<ShmReceiver::Taken> ShmReceiver::take_packet_in_loop() {
  if (!pending_.has_value()) {
    ControlPacket packet;
    switch (context_.receive_in_loop(socket_, packet)) {
      case ControlSocket::Receipt::kPacket:
        pending_ = std::move(packet);
        break;
      case ControlSocket::Receipt::kNothing:
        return Taken::kNothing;
      case ControlSocket::Receipt::kEnd:
        return Taken::kEnd;
      case ControlSocket::Receipt::kInvalid:
        return absl::InvalidArgumentError("malformed packet on the control socket");
      case ControlSocket::Receipt::kNoDescriptors:
        read_socket_later_in_loop(context_.shortage_in_loop("cannot receive a segment of shared memory"));
        return Taken::kLater;
    }
  }
  const absl::Status handled = handle_packet_in_loop(*pending_);
  if (is_local_shortage(handled)) {
    read_socket_later_in_loop(handled);
    return Taken::kLater;
  }
  pending_.reset();
  (void)context_.spare.occupy();
  retry_pause_ = kFirstRetry;
  GRADWIRE_RETURN_IF_ERROR(handled);
  return Taken::kPacket;
}

absl::Status ShmReceiver::handle_packet_in_loop(const ControlPacket& packet) {
  if (packet.is_doorbell()) return absl::OkStatus();
  if (const absl::optional<SegmentPacket> segment = packet.as<SegmentPacket>(1)) {
    return peer_arena_.add(*segment, packet.descriptors[0]);
  }
  if (const absl::optional<DropPacket> drop = packet.as<DropPacket>(0))
    return peer_arena_.drop(drop->segment);
  return absl::InvalidArgumentError("malformed packet on the control socket");
}

// Only the first attempt is logged.
void ShmReceiver::read_socket_later_in_loop(const absl::Status& shortage) {
  if (retry_timer_ != 0) return;
  if (retry_pause_ == kFirstRetry) {
    log(LogLevel::kWarning, "the connection with ", connection_.peer_address(),
        " waits: ", shortage.message());
  }
  const absl::Duration pause = std::exchange(retry_pause_, std::min(2 * retry_pause_, kLongestRetry));
  retry_timer_ = connection_.schedule_in_loop(Clock::system().now() + pause, [this] {
    retry_timer_ = 0;
    read_socket_in_loop();
  });
}

// Registers the announced segments. A segment is announced before the message that uses it, but through the
// socket, so the message may be read first.
absl::StatusOr<bool> ShmReceiver::catch_up_in_loop() {
  // The limit is above the number of packets that fit into a socket. It prevents a peer that keeps writing
  // from keeping this end busy indefinitely.
  for (int packets = 0; packets < 100'000; ++packets) {
    GRADWIRE_ASSIGN_OR_RETURN(const Taken taken, take_packet_in_loop());
    switch (taken) {
      case Taken::kPacket:
        break;
      case Taken::kNothing:
        return true;
      case Taken::kLater:
        return false;
      case Taken::kEnd:
        // The end of the socket is handled after the ring has been read.
        connection_.post([this] { read_socket_in_loop(); });
        return true;
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

void ShmReceiver::failed_in_loop(const absl::Status& error) { connection_.fail_in_loop(error); }

// Reads at most one pass around the ring. Unless `all`, it stops when the time of the loop's round is over.
// The loop polls the ring again in each round.
bool ShmReceiver::read_ring_in_loop(bool all) {
  Turns& turns = connection_.loop().turns_in_loop();
  auto catch_up = [this] { return catch_up_in_loop(); };
  const uint64_t lines = ring_->line_count();
  int records = 0;
  for (uint64_t seen = 0; seen < lines && ring_.has_value();) {
    const uint64_t word = held_record_ != 0 ? std::exchange(held_record_, 0) : ring_->peek();
    if (word == 0) break;
    if (!all && records > 0 && records % kRecordsPerQuestion == 0 && turns.spent()) break;
    ++records;
    // Use this copy of the word only: a hostile peer may change the word in the ring at any time.
    const RecordWord record = RecordWord::decode(word);
    seen += lines_of(record.length);
    absl::StatusOr<MessageReader::Progress> progress = MessageReader::Progress::kPart;
    if (!connection_.close_called()) {
      if (!reader_.in_message()) reader_.set_max_message_bytes(connection_.listener().max_message_bytes());
      progress = reader_.read(*ring_, record, catch_up);
      // After close() records are skipped, so that the peer can finish writing. Their length must be valid
      // for that, too.
    } else if (record.length > ring_->max_payload()) {
      progress = absl::InvalidArgumentError("malformed record in the ring");
    }
    if (!progress.ok()) {
      connection_.fail_in_loop(progress.status());
      return true;
    }
    if (*progress == MessageReader::Progress::kLater) {
      // Keep the word: a hostile peer may change it.
      held_record_ = word;
      break;
    }
    // Release the record before its message is delivered: the listener may take long.
    if (ring_->release(record.length)) {
      context_.counters->doorbells.fetch_add(1, std::memory_order_relaxed);
      doorbell_.ring();
    }
    if (*progress == MessageReader::Progress::kPart) {
      if (!connection_.close_called()) count_part_in_loop(record.length);
      continue;
    }
    absl::Status lost = reader_.lost();
    Message message = reader_.take();
    if (!message.buffers.empty()) context_.trim_pool();
    if (connection_.close_called()) continue;
    // The listener may close the connection, which resets ring_: the loop checks it.
    if (lost.ok()) {
      connection_.listener().on_message(connection_, std::move(message));
    } else {
      connection_.listener().on_lost(connection_, std::move(message.header), std::move(lost));
    }
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
