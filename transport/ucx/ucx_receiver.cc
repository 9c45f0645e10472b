#include "gradwire/transport/ucx/ucx_receiver.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::transport {
namespace {

// How far ahead of the first message that has not come whole others are kept: many times what an honest
// sender has under way at once.
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
    if (connection_.close_called() && greeted_) {
      // Nothing is delivered any more, so that what comes before a goodbye is of no interest.
      if (head.kind == UcxHead::Kind::kGoodbye) peer_left_ = true;
      return absl::OkStatus();
    }
    if (head.sequence - next_sequence_ >= kMaxAhead) {
      return absl::InvalidArgumentError(
          absl::StrCat("frame ", head.sequence, " arrived where ", next_sequence_, " is next"));
    }
    const std::size_t index = head.sequence - next_sequence_;
    if (incoming_.size() <= index) incoming_.resize(index + 1);
    Incoming& incoming = incoming_[index];
    if (head.kind != UcxHead::Kind::kBuffer) {
      return receive_frame_in_loop(incoming, head, data, data_bytes, rendezvous);
    }
    if (!rendezvous) return absl::InvalidArgumentError("a buffer came without rendezvous");
    if (incoming.framed) return begin_buffer_in_loop(incoming, head, data);
    if (held_count_ >= context_.options.limits.max_buffers) {
      return absl::InvalidArgumentError("too many buffers came before their messages");
    }
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
  incoming.framed = true;
  if (head.kind == UcxHead::Kind::kMessage) {
    GRADWIRE_ASSIGN_OR_RETURN(UcxFrame frame, UcxFrame::parse(head, data, context_.options.limits));
    incoming.message.header.assign(frame.header.data(), frame.header.size());
    incoming.message.buffers.resize(frame.sizes.size());
    for (std::size_t i = 0; i < frame.sizes.size(); ++i) {
      const uint64_t size = frame.sizes[i];
      if (size >= UcxHead::kSeparateFrom) {
        ++incoming.missing;
        continue;
      }
      if (size == 0) continue;
      GRADWIRE_ASSIGN_OR_RETURN(incoming.message.buffers[i], context_.pool->allocate(size));
      std::memcpy(incoming.message.buffers[i].data(), frame.buffers.data(), size);
      frame.buffers.remove_prefix(size);
    }
    incoming.sizes = std::move(frame.sizes);
  }
  std::vector<Held> held = std::exchange(incoming.held, {});
  held_count_ -= held.size();
  absl::Status status;
  for (const Held& each : held) {
    if (status.ok()) {
      status = begin_buffer_in_loop(incoming, each.head, each.descriptor);
      // Refused ones are still this end's to release; those that began are UCX's.
      if (status.ok()) continue;
    }
    ucp_am_data_release(context_.worker->get(), each.descriptor);
  }
  return status;
}

absl::Status UcxReceiver::begin_buffer_in_loop(Incoming& incoming, const UcxHead& head, void* descriptor) {
  if (head.number >= incoming.sizes.size() || incoming.sizes[head.number] != head.length ||
      incoming.message.buffers[head.number].data() != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", incoming.sizes.size(),
                                                   " buffers did not announce buffer ", head.number, " with ",
                                                   head.length, " bytes, or it has come already"));
  }
  GRADWIRE_ASSIGN_OR_RETURN(Buffer memory, context_.pool->allocate(head.length));
  incoming.message.buffers[head.number] = memory;
  return begin_arrival_in_loop(head, std::move(memory), descriptor);
}

absl::Status UcxReceiver::begin_arrival_in_loop(const UcxHead& head, Buffer buffer, void* descriptor) {
  context_.tend_pool();
  arrivals_.push_back({this, attempt_, head, std::move(buffer), {}});
  Arrival& arrival = arrivals_.back();
  arrival.self = std::prev(arrivals_.end());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &UcxReceiver::on_arrived;
  param.user_data = &arrival;
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(context_.worker->get(), descriptor,
                                                        arrival.buffer.data(), arrival.buffer.size(), &param);
  // The descriptor is UCX's now, even if it could not begin.
  if (!UCS_PTR_IS_PTR(request)) arrived_in_loop(arrival, UCS_PTR_STATUS(request));
  return absl::OkStatus();
}

void UcxReceiver::on_arrived(void* request, ucs_status_t status, std::size_t bytes, void* user_data) {
  ucp_request_free(request);
  auto* const arrival = static_cast<Arrival*>(user_data);
  if (status == UCS_OK && bytes != arrival->buffer.size()) status = UCS_ERR_MESSAGE_TRUNCATED;
  arrival->receiver->arrived_in_loop(*arrival, status);
}

void UcxReceiver::arrived_in_loop(Arrival& arrival, ucs_status_t status) {
  const UcxHead head = arrival.head;
  const bool current = arrival.attempt == attempt_;
  const Buffer buffer = std::move(arrival.buffer);
  arrivals_.erase(arrival.self);
  settle_(absl::OkStatus());
  if (!current || stopped_ || connection_.close_called()) return;
  if (status != UCS_OK) {
    settle_(absl::UnavailableError(ucs_status_string(status)));
    return;
  }
  // It was missing, so that neither its message nor one behind it has been delivered.
  Incoming& incoming = incoming_[head.sequence - next_sequence_];
  if (head.kind == UcxHead::Kind::kBuffer) {
    --incoming.missing;
    return;
  }
  settle_(accept_frame_in_loop(incoming, head,
                               absl::string_view(static_cast<const char*>(buffer.data()), buffer.size())));
}

void UcxReceiver::deliver_in_loop() {
  while (!incoming_.empty() && incoming_.front().framed && incoming_.front().missing == 0) {
    Incoming first = std::move(incoming_.front());
    incoming_.pop_front();
    ++next_sequence_;
    switch (first.kind) {
      case UcxHead::Kind::kMessage:
        if (!connection_.close_called()) {
          connection_.listener().on_message(connection_, std::move(first.message));
        }
        break;
      case UcxHead::Kind::kHello:
        greeted_ = true;
        break;
      case UcxHead::Kind::kGoodbye:
        peer_left_ = true;
        return;
      case UcxHead::Kind::kBuffer:
        return;
    }
  }
}

void UcxReceiver::reset_in_loop() {
  for (const Incoming& incoming : incoming_) {
    for (const Held& held : incoming.held) ucp_am_data_release(context_.worker->get(), held.descriptor);
  }
  incoming_.clear();
  held_count_ = 0;
  next_sequence_ = 0;
  stopped_ = false;
  ++attempt_;
}

}  // namespace gradwire::transport
