// The part of UcxConnection that sends.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/transport/tcp/frame.h"
#include "gradwire/transport/ucx/ucx_connection.h"

namespace gradwire::transport {
namespace {

// Messages that UCX has and that have not left. The other end keeps what overtakes a large message.
constexpr std::size_t kMaxPosted = 1024;
// Frames up to this size are sent without asking the other end first.
constexpr std::size_t kMaxEagerBytes = std::size_t{128} << 10;

// A copy that nobody changes.
absl::StatusOr<Buffer> copy_of(const Buffer& buffer, BufferPool& pool) {
  GRADWIRE_ASSIGN_OR_RETURN(Buffer copy, pool.allocate(buffer.size()));
  std::memcpy(copy.data(), buffer.data(), buffer.size());
  return copy;
}

}  // namespace

absl::StatusOr<uint64_t> UcxConnection::send(Message message) {
  const absl::Status within_limits = check_frame_limits(message, context_->options.limits);
  if (!within_limits.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message for ", peer_address_, " is too large: ", within_limits.message()));
  }
  auto outgoing = std::make_unique<UcxOutgoing>();
  outgoing->connection = this;
  outgoing->bytes = message.byte_size();
  outgoing->frame = encode_ucx_frame(message);
  UcxHead head;
  head.length = message.header.size();
  head.number = static_cast<uint32_t>(message.buffers.size());
  std::vector<UcxHead> heads;
  for (std::size_t i = 0; i < message.buffers.size(); ++i) {
    Buffer& buffer = message.buffers[i];
    if (buffer.size() < UcxHead::kSeparateFrom) continue;
    // UCX cannot be told to stop reading, and how long it reads is up to the other end.
    if (buffer.sharing() == Buffer::Sharing::kBorrowed) {
      GRADWIRE_ASSIGN_OR_RETURN(buffer, copy_of(buffer, *context_->pool));
    }
    heads.push_back({UcxHead::Kind::kBuffer, 0, buffer.size(), static_cast<uint32_t>(i)});
    outgoing->buffers.emplace_back().buffer = std::move(buffer);
  }
  uint64_t ticket;
  bool post;
  {
    MutexLock lock(mutex_);
    if (state_ == State::kClosing || state_ == State::kClosed) {
      return absl::UnavailableError(
          absl::StrCat("connection with ", peer_address_, " is closed: ", close_reason_->message()));
    }
    ticket = next_ticket_++;
    head.sequence = ticket;
    outgoing->frame_piece.head = head.encode();
    for (std::size_t i = 0; i < heads.size(); ++i) {
      heads[i].sequence = ticket;
      outgoing->buffers[i].head = heads[i].encode();
    }
    queued_bytes_.fetch_add(outgoing->bytes, std::memory_order_relaxed);
    queue_.push_back(std::move(outgoing));
    post = !std::exchange(settle_posted_, true);
  }
  if (post) {
    context_->loop->post([self = shared_from_this()] {
      self->settle_in_loop();
      self->context_->heat_in_loop();
    });
  }
  return ticket;
}

void UcxConnection::post_queued_in_loop() {
  if (!connected_ || endpoint_ == nullptr) return;
  while (posted_.size() < kMaxPosted &&
         (posted_.empty() || posted_bytes_ < context_->options.max_posted_bytes)) {
    std::unique_ptr<UcxOutgoing> message;
    uint64_t goodbye = 0;
    {
      MutexLock lock(mutex_);
      if (!queue_.empty()) {
        message = std::move(queue_.front());
        queue_.pop_front();
      } else if (state_ == State::kClosing && !goodbye_sent_) {
        goodbye = next_ticket_++;
      }
    }
    if (message != nullptr) {
      post_in_loop(std::move(message));
    } else {
      if (goodbye == 0) return;
      goodbye_sent_ = true;
      post_control_in_loop(UcxHead::Kind::kGoodbye, goodbye);
    }
  }
}

void UcxConnection::post_control_in_loop(UcxHead::Kind kind, uint64_t sequence) {
  auto message = std::make_unique<UcxOutgoing>();
  message->connection = this;
  message->frame_piece.head = UcxHead{kind, sequence, 0, 0}.encode();
  post_in_loop(std::move(message));
}

void UcxConnection::post_in_loop(std::unique_ptr<UcxOutgoing> message) {
  UcxOutgoing& posted = *message;
  posted_.push_back(std::move(message));
  posted_bytes_ += posted.bytes;
  posted.endpoint = endpoint_;
  posted.pieces_left = 2 + posted.buffers.size();
  posted.frame_piece.message = &posted;
  // UCX's own choice is rendezvous from a few KiB on, which over TCP takes four times as long at 16 KiB.
  const unsigned eager = posted.frame.size() <= kMaxEagerBytes ? UCP_AM_SEND_FLAG_EAGER : 0;
  post_piece_in_loop(posted.frame_piece, posted.frame.data(), posted.frame.size(),
                     UCP_AM_SEND_FLAG_REPLY | eager);
  for (UcxOutgoing::Piece& piece : posted.buffers) {
    piece.message = &posted;
    post_piece_in_loop(piece, piece.buffer.data(), piece.buffer.size(),
                       UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV);
  }
  count_down_in_loop(posted);
}

void UcxConnection::post_piece_in_loop(UcxOutgoing::Piece& piece, const void* data, std::size_t bytes,
                                       unsigned flags) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &UcxConnection::on_sent;
  param.user_data = &piece;
  param.flags = flags;
  ++outstanding_;
  const ucs_status_ptr_t request = ucp_am_send_nbx(piece.message->endpoint, kActiveMessageId,
                                                   piece.head.data(), piece.head.size(), data, bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) piece_left_in_loop(piece, UCS_PTR_STATUS(request));
}

void UcxConnection::on_sent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  auto* const piece = static_cast<UcxOutgoing::Piece*>(user_data);
  piece->message->connection->piece_left_in_loop(*piece, status);
}

void UcxConnection::piece_left_in_loop(UcxOutgoing::Piece& piece, ucs_status_t status) {
  --outstanding_;
  if (piece.buffer.data() != nullptr) context_->release_in_loop(std::exchange(piece.buffer, Buffer()));
  UcxOutgoing& message = *piece.message;
  // Of another attempt to connect nothing is of interest.
  if (status != UCS_OK && message.endpoint == endpoint_) fail_in_loop(unavailable(ucs_status_string(status)));
  context_->touch_in_loop(*this);
  count_down_in_loop(message);
}

void UcxConnection::count_down_in_loop(UcxOutgoing& message) {
  if (--message.pieces_left > 0) return;
  posted_bytes_ -= message.bytes;
  queued_bytes_.fetch_sub(message.bytes, std::memory_order_relaxed);
  while (!posted_.empty() && posted_.front()->pieces_left == 0) posted_.pop_front();
}

}  // namespace gradwire::transport
