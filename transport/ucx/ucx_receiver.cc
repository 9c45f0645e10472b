// UCX delivers active messages in any order, and long buffers apart from the frame of their message. The
// receiver puts them together:
// 1. incoming_[i] collects the message with sequence number next_sequence_ + i.
// 2. A buffer that arrives before its frame is held inside UCX (`held`), since its size cannot be checked
//    yet.
// 3. A frame, or a buffer that its frame has announced, is read into memory of the pool (Reception).
// 4. deliver_in_loop() passes on messages in order, up to the first incomplete one. If the time of the round
// is
//    over before, the rest waits for a task of a later round (`deferred_`).
//
// The peer is not trusted: sequence numbers, held buffers and sizes are limited.

#include "gradwire/transport/ucx/ucx_receiver.h"

#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"

namespace gradwire::transport {
namespace {

// Maximum distance of a kept message from the first incomplete one: many times the number of messages that a
// correct sender has in flight.
constexpr uint64_t kMaxAhead = 65'536;

}  // namespace

ucs_status_t UcxReceiver::receive_in_loop(absl::string_view head_bytes, void* data, std::size_t data_bytes,
                                          bool rendezvous) {
  if (stopped_) return UCS_OK;
  settle_(absl::OkStatus());
  ucs_status_t result = UCS_OK;
  const absl::Status status = [&]() -> absl::Status {
    GRADWIRE_ASSIGN_OR_RETURN(const UcxHead head, UcxHead::parse(head_bytes));
    GRADWIRE_RETURN_IF_ERROR(head.check_data(data_bytes, context_.options.limits));
    if (head.kind == UcxHead::Kind::kHello || head.kind == UcxHead::Kind::kHandshake) {
      return absl::InvalidArgumentError("a hello or a message of the handshake has arrived after their end");
    }
    if (connection_.close_called()) {
      // No messages are delivered any more, so everything before a goodbye is ignored.
      if (head.kind == UcxHead::Kind::kGoodbye) peer_left_ = true;
      return absl::OkStatus();
    }
    // The subtraction is unsigned, so a number that was delivered before is out of range too.
    if (head.sequence - next_sequence_ >= kMaxAhead) {
      return absl::InvalidArgumentError(absl::StrCat("frame out of range: got sequence number ",
                                                     head.sequence, ", expected ", next_sequence_,
                                                     " or one of the next ", kMaxAhead));
    }
    const std::size_t index = head.sequence - next_sequence_;
    if (incoming_.size() <= index) {
      incoming_.resize(index + 1);
      count_waiting_in_loop();
    }
    // It shows that the peer is alive while the messages before it are incomplete.
    if (index > 0) count_bytes_in_loop(UcxHead::kBytes + (rendezvous ? 0 : data_bytes));
    Incoming& incoming = incoming_[index];
    if (head.kind != UcxHead::Kind::kBuffer) {
      return receive_frame_in_loop(incoming, head, data, data_bytes, rendezvous);
    }
    if (!rendezvous) return absl::InvalidArgumentError("a buffer was sent without rendezvous");
    if (incoming.framed) return begin_buffer_in_loop(incoming, head, data);
    if (held_count_ >= context_.options.limits.max_buffers) {
      return absl::InvalidArgumentError("too many buffers arrived before their messages");
    }
    // The frame of the message has not arrived yet. UCS_INPROGRESS makes UCX keep the data for later.
    // Limited for all messages together: each held buffer uses memory of UCX.
    ++held_count_;
    incoming.held.push_back({head, data});
    result = UCS_INPROGRESS;
    return absl::OkStatus();
  }();
  if (!status.ok()) settle_(status);
  return result;
}

absl::Status UcxReceiver::receive_frame_in_loop(Incoming& incoming, const UcxHead& head, void* data,
                                                std::size_t data_bytes, bool rendezvous) {
  // A second frame would replace the sizes that were checked.
  if (std::exchange(incoming.frame_begun, true)) {
    return absl::InvalidArgumentError(absl::StrCat("frame ", head.sequence, " arrived twice"));
  }
  if (!rendezvous) {
    return accept_frame_in_loop(incoming, head,
                                absl::string_view(static_cast<const char*>(data), data_bytes));
  }
  GRADWIRE_ASSIGN_OR_RETURN(Buffer memory, context_.pool->allocate(data_bytes));
  return begin_arrival_in_loop(head, std::move(memory), data);
}

absl::Status UcxReceiver::accept_frame_in_loop(Incoming& incoming, const UcxHead& head,
                                               absl::string_view data) {
  incoming.kind = head.kind;
  if (head.kind == UcxHead::Kind::kMessage) {
    GRADWIRE_ASSIGN_OR_RETURN(UcxFrame frame, UcxFrame::parse(head, data, context_.options.limits));
    incoming.message.header.assign(frame.header.data(), frame.header.size());
    incoming.message.buffers.resize(frame.sizes.size());
    for (std::size_t i = 0; i < frame.sizes.size(); ++i) {
      const uint64_t size = frame.sizes[i];
      if (size >= UcxHead::kSeparateFrom) {
        ++incoming.missing;
        incoming.missing_bytes += size;
        continue;
      }
      if (size == 0) continue;
      GRADWIRE_ASSIGN_OR_RETURN(incoming.message.buffers[i], context_.pool->allocate(size));
      std::memcpy(incoming.message.buffers[i].data(), frame.buffers.data(), size);
      frame.buffers.remove_prefix(size);
    }
    incoming.sizes = std::move(frame.sizes);
  }
  // Only now: a message whose frame was not accepted as a whole must not be delivered.
  incoming.framed = true;
  // After an error or an exception reset_in_loop() releases those that are left.
  while (!incoming.held.empty()) {
    const Held each = incoming.held.back();
    incoming.held.pop_back();
    --held_count_;
    // This end must release a refused buffer; UCX owns those that have begun.
    absl::Cleanup refused = [&] { ucp_am_data_release(context_.worker->get(), each.descriptor); };
    GRADWIRE_RETURN_IF_ERROR(begin_buffer_in_loop(incoming, each.head, each.descriptor));
    std::move(refused).Cancel();
  }
  return absl::OkStatus();
}

absl::Status UcxReceiver::begin_buffer_in_loop(Incoming& incoming, const UcxHead& head, void* descriptor) {
  if (head.number >= incoming.sizes.size() || incoming.sizes[head.number] != head.length ||
      incoming.message.buffers[head.number].data() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected buffer ", head.number, " of ", head.length,
                                                   " bytes in a message with ", incoming.sizes.size(),
                                                   " buffers: not announced or already received"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(Buffer memory, context_.pool->allocate(head.length));
  incoming.message.buffers[head.number] = memory;
  return begin_arrival_in_loop(head, std::move(memory), descriptor);
}

absl::Status UcxReceiver::begin_arrival_in_loop(const UcxHead& head, Buffer buffer, void* descriptor) {
  context_.trim_pool();
  // A list, because UCX keeps the address of the entry until the operation completes.
  arrivals_.push_back({this, attempt_, head, std::move(buffer), {}});
  Reception& arrival = arrivals_.back();
  arrival.self = std::prev(arrivals_.end());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &UcxReceiver::on_arrived;
  param.user_data = &arrival;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(context_.worker->get(), descriptor,
                                                        arrival.buffer.data(), arrival.buffer.size(), &param);
  // UCX now owns the descriptor, even if the operation failed to start.
  if (!UCS_PTR_IS_PTR(request)) arrived_in_loop(arrival, UCS_PTR_STATUS(request));
  return absl::OkStatus();
}

void UcxReceiver::on_arrived(void* request, ucs_status_t status, std::size_t bytes, void* user_data) {
  ucp_request_free(request);
  auto* const arrival = static_cast<Reception*>(user_data);
  if (status == UCS_OK && bytes != arrival->buffer.size()) status = UCS_ERR_MESSAGE_TRUNCATED;
  arrival->receiver->arrived_in_loop(*arrival, status);
}

void UcxReceiver::arrived_in_loop(Reception& arrival, ucs_status_t status) noexcept {
  at_boundary(
      "the end of a receive of ucx", [&] { use_arrival_in_loop(arrival, status); },
      [&](absl::Status error) { settle_(std::move(error)); });
}

void UcxReceiver::use_arrival_in_loop(Reception& arrival, ucs_status_t status) {
  const UcxHead head = arrival.head;
  const bool current = arrival.attempt == attempt_;
  const Buffer buffer = std::move(arrival.buffer);
  arrivals_.erase(arrival.self);
  settle_(absl::OkStatus());
  // The operation belongs to an earlier attempt to connect, or its message will not be delivered.
  if (!current || stopped_ || connection_.close_called()) return;
  if (status != UCS_OK) {
    settle_(absl::UnavailableError(ucs_status_string(status)));
    return;
  }
  // The operation was outstanding, so neither its message nor a later one has been delivered.
  Incoming& incoming = incoming_[head.sequence - next_sequence_];
  if (head.kind == UcxHead::Kind::kBuffer) {
    --incoming.missing;
    incoming.missing_bytes -= head.length;
    if (incoming.announced) count_bytes_in_loop(head.length);
    return;
  }
  settle_(accept_frame_in_loop(incoming, head,
                               absl::string_view(static_cast<const char*>(buffer.data()), buffer.size())));
}

// Delivers in the order of the sequence numbers, up to the first incomplete message.
// A listener may close the connection in between; then the remaining messages are dropped, but a goodbye
// still counts.
void UcxReceiver::deliver_in_loop() {
  if (deferred_ && !connection_.close_called()) return;
  Turns& turns = connection_.loop().turns_in_loop();
  bool any = false;
  while (!peer_left_ && !incoming_.empty() && incoming_.front().framed && incoming_.front().missing == 0) {
    if (any && !connection_.close_called() && turns.spent()) {
      defer_in_loop();
      break;
    }
    any = true;
    Incoming first = std::move(incoming_.front());
    incoming_.pop_front();
    ++next_sequence_;
    // The other kind is a goodbye: nothing follows.
    if (first.kind != UcxHead::Kind::kMessage) {
      peer_left_ = true;
    } else if (!connection_.close_called()) {
      connection_.listener().on_message(connection_, std::move(first.message));
    }
  }
  count_waiting_in_loop();
  announce_in_loop();
}

void UcxReceiver::announce_in_loop() {
  if (incoming_.empty() || connection_.close_called()) return;
  Incoming& next = incoming_.front();
  if (!next.framed || next.missing == 0 || std::exchange(next.announced, true)) return;
  uint64_t bytes = next.message.header.size();
  for (const uint64_t size : next.sizes) bytes += size;
  const uint64_t arrived = bytes - next.missing_bytes;
  count_bytes_in_loop(arrived);
  connection_.listener().on_arriving(connection_, next.message.header, bytes, arrived);
}

void UcxReceiver::defer_in_loop() {
  deferred_ = true;
  connection_.defer_in_loop([this] {
    // The connection may have ended meanwhile.
    if (!std::exchange(deferred_, false)) return;
    deliver_in_loop();
    settle_(absl::OkStatus());
    context_.activate_in_loop();
  });
}

void UcxReceiver::count_waiting_in_loop() {
  const std::size_t count = deferred_ ? incoming_.size() : 0;
  context_.waiting_messages += count - std::exchange(counted_, count);
}

void UcxReceiver::reset_in_loop() {
  for (const Incoming& incoming : incoming_) {
    for (const Held& held : incoming.held) ucp_am_data_release(context_.worker->get(), held.descriptor);
  }
  incoming_.clear();
  held_count_ = 0;
  next_sequence_ = 1;
  stopped_ = false;
  deferred_ = false;
  count_waiting_in_loop();
  // Operations that are still outstanding belong to the old attempt and are ignored when they complete.
  ++attempt_;
}

}  // namespace gradwire::transport
