#include "gradwire/transport/ucx/ucx_sender.h"

#include <cstring>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"

namespace gradwire::transport {
namespace {

// Maximum number of unsent messages that were passed to UCX. The peer must keep the messages that overtake a
// large one.
constexpr std::size_t kMaxPosted = 1024;
// Maximum size of frames that are sent by the eager protocol.
constexpr std::size_t kMaxEagerBytes = std::size_t{128} << 10;

// Returns a copy that is not modified by the caller.
absl::StatusOr<Buffer> copy_of(const Buffer& buffer, BufferPool& pool) {
  GRADWIRE_ASSIGN_OR_RETURN(Buffer copy, pool.allocate(buffer.size()));
  std::memcpy(copy.data(), buffer.data(), buffer.size());
  return copy;
}

}  // namespace

absl::StatusOr<uint64_t> UcxSender::send(Message message, bool& post) {
  GRADWIRE_RETURN_IF_ERROR(connection_.check_sendable(message, context_.options.limits));
  auto outgoing = std::make_unique<Outgoing>();
  outgoing->sender = this;
  outgoing->bytes = outgoing->queued_bytes = message.byte_size();
  outgoing->frame = encode_ucx_frame(message);
  UcxHead head;
  head.length = message.header.size();
  head.number = static_cast<uint32_t>(message.buffers.size());
  std::vector<UcxHead> heads;
  for (std::size_t i = 0; i < message.buffers.size(); ++i) {
    Buffer& buffer = message.buffers[i];
    if (buffer.size() < UcxHead::kSeparateFrom) continue;
    // Copy borrowed buffers: UCX cannot be made to stop reading, and the peer determines how long it reads.
    // Frame and buffers are copied before the lock, so that threads send at the same time. Only the
    // sequence numbers are assigned under it.
    if (buffer.sharing() == Buffer::Sharing::kBorrowed) {
      GRADWIRE_ASSIGN_OR_RETURN(buffer, copy_of(buffer, *context_.pool));
    }
    heads.push_back({UcxHead::Kind::kBuffer, 0, buffer.size(), static_cast<uint32_t>(i)});
    outgoing->buffers.emplace_back().buffer = std::move(buffer);
  }
  uint64_t ticket;
  {
    MutexLock lock(mutex_);
    if (refusal_.has_value()) return connection_.closed_error(*refusal_);
    ticket = next_ticket_++;
    head.sequence = ticket;
    outgoing->frame_piece.head = head.encode();
    for (std::size_t i = 0; i < heads.size(); ++i) {
      heads[i].sequence = ticket;
      outgoing->buffers[i].head = heads[i].encode();
    }
    queued_bytes_.fetch_add(outgoing->bytes, std::memory_order_relaxed);
    queue_.push_back(std::move(outgoing));
    // Only the first message needs a task for the loop. post_queued_in_loop() resets the flag under the
    // lock when it finds the queue empty, so a message that is appended later posts again.
    post = !std::exchange(post_pending_, true);
  }
  return ticket;
}

void UcxSender::refuse(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (!refusal_.has_value()) refusal_ = reason;
}

void UcxSender::end(const absl::Status& reason) {
  refuse(reason);
  deferred_ = false;
  std::deque<std::unique_ptr<Outgoing>> unsent;
  {
    MutexLock lock(mutex_);
    unsent.swap(queue_);
  }
  for (const auto& message : unsent) queued_bytes_.fetch_sub(message->bytes, std::memory_order_relaxed);
}

void UcxSender::post_opening_in_loop(UcxOpening::Outgoing opening) {
  if (endpoint_ == nullptr) return;
  auto message = std::make_unique<Outgoing>();
  message->sender = this;
  message->frame = std::move(opening.data);
  message->frame_piece.head = opening.head.encode();
  post_in_loop(std::move(message));
}

// UCX may still read the memory of these messages until it has completed them, so they are kept.
void UcxSender::abandon_in_loop() {
  for (std::unique_ptr<Outgoing>& message : posted_) abandoned_.push_back(std::move(message));
  posted_.clear();
}

void UcxSender::worker_ended_in_loop() {
  endpoint_ = nullptr;
  posted_.clear();
  abandoned_.clear();
}

void UcxSender::post_queued_in_loop() {
  if (endpoint_ == nullptr || deferred_) return;
  Turns& turns = connection_.loop().turns_in_loop();
  while (posted_.size() < kMaxPosted &&
         (posted_.empty() || posted_bytes_ < context_.options.max_posted_bytes)) {
    std::unique_ptr<Outgoing> message;
    uint64_t goodbye = 0;
    bool more = false;
    {
      MutexLock lock(mutex_);
      if (!queue_.empty()) {
        message = std::move(queue_.front());
        queue_.pop_front();
        more = !queue_.empty();
      } else {
        post_pending_ = false;
        // The queue is empty, and no message can follow: the goodbye gets the last sequence number.
        if (refusal_.has_value() && !goodbye_sent_) goodbye = next_ticket_++;
      }
    }
    if (message != nullptr) {
      post_in_loop(std::move(message));
      if (!more || !turns.spent()) continue;
      defer_in_loop();
      return;
    } else {
      if (goodbye == 0) return;
      goodbye_sent_ = true;
      post_goodbye_in_loop(goodbye);
    }
  }
}

void UcxSender::defer_in_loop() {
  deferred_ = true;
  connection_.defer_in_loop([this] {
    // The connection may have ended meanwhile.
    if (!std::exchange(deferred_, false)) return;
    post_queued_in_loop();
    context_.activate_in_loop();
  });
}

void UcxSender::post_goodbye_in_loop(uint64_t sequence) {
  auto message = std::make_unique<Outgoing>();
  message->sender = this;
  message->frame_piece.head = UcxHead{UcxHead::Kind::kGoodbye, sequence, 0, 0}.encode();
  post_in_loop(std::move(message));
}

void UcxSender::post_in_loop(std::unique_ptr<Outgoing> message) {
  Outgoing& posted = *message;
  posted_.push_back(std::move(message));
  posted_bytes_ += posted.bytes;
  posted.endpoint = endpoint_;
  // One for the frame, one for each buffer, and one for this function. UCX may complete a piece inside the
  // call that posts it; the extra one keeps the message until all pieces are posted.
  posted.unsent_pieces = 2 + posted.buffers.size();
  posted.frame_piece.message = &posted;
  // By default UCX uses rendezvous from a few KiB on, which over TCP takes four times as long at 16 KiB.
  const unsigned eager = posted.frame.size() <= kMaxEagerBytes ? UCP_AM_SEND_FLAG_EAGER : 0;
  post_piece_in_loop(posted.frame_piece, posted.frame.data(), posted.frame.size(),
                     UCP_AM_SEND_FLAG_REPLY | eager);
  for (Outgoing::Piece& piece : posted.buffers) {
    piece.message = &posted;
    post_piece_in_loop(piece, piece.buffer.data(), piece.buffer.size(),
                       UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_RNDV);
  }
  count_down_in_loop(posted);
}

void UcxSender::post_piece_in_loop(Outgoing::Piece& piece, const void* data, std::size_t bytes,
                                   unsigned flags) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &UcxSender::on_sent;
  param.user_data = &piece;
  param.flags = flags;
  ++outstanding_;
  const ucs_status_ptr_t request = ucp_am_send_nbx(piece.message->endpoint, kActiveMessageId,
                                                   piece.head.data(), piece.head.size(), data, bytes, &param);
  // UCX completed or refused the piece at once. Then it does not call the callback.
  if (!UCS_PTR_IS_PTR(request)) piece_sent_in_loop(piece, UCS_PTR_STATUS(request));
}

void UcxSender::on_sent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  auto* const piece = static_cast<Outgoing::Piece*>(user_data);
  UcxSender& sender = *piece->message->sender;
  at_boundary(
      "the end of a send of ucx", [&] { sender.piece_sent_in_loop(*piece, status); },
      [&](absl::Status error) { sender.settle_(std::move(error)); });
}

void UcxSender::piece_sent_in_loop(Outgoing::Piece& piece, ucs_status_t status) {
  --outstanding_;
  Outgoing& message = *piece.message;
  const std::size_t bytes = piece.buffer.size();
  message.queued_bytes -= bytes;
  queued_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  // The buffer belongs to a user, whose code must not run inside UCX's callback.
  if (piece.buffer.data() != nullptr) context_.release_in_loop(std::exchange(piece.buffer, Buffer()));
  // Errors of an earlier attempt to connect are ignored.
  settle_(status != UCS_OK && message.endpoint == endpoint_
              ? absl::UnavailableError(ucs_status_string(status))
              : absl::OkStatus());
  count_down_in_loop(message);
}

void UcxSender::count_down_in_loop(Outgoing& message) {
  if (--message.unsent_pieces > 0) return;
  posted_bytes_ -= message.bytes;
  queued_bytes_.fetch_sub(message.queued_bytes, std::memory_order_relaxed);
  while (!posted_.empty() && posted_.front()->unsent_pieces == 0) posted_.pop_front();
}

}  // namespace gradwire::transport
