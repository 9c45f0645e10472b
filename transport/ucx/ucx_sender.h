#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_frame.h"
#include "gradwire/transport/ucx/ucx_opening.h"

namespace gradwire::transport {

// The sending side of a connection over UCX: the messages that wait, and those that were passed to UCX.
//
// send() encodes frames and copies buffers on its caller's thread. send(), refuse() and queued_bytes() may be
// called from any thread; all other methods are for the loop's driver. It is a part of its connection.
class UcxSender {
 public:
  static constexpr unsigned kActiveMessageId = 0;

  // `settle` is called when the connection has work to do after UCX's callbacks. If its argument is not OK,
  // the connection must be closed for that reason.
  UcxSender(LoopConnection& connection, UcxContext& context, std::function<void(absl::Status)> settle)
      : connection_(connection), context_(context), settle_(std::move(settle)) {}

  // As Connection::send(). Sets `post` if the caller must notify the loop.
  absl::StatusOr<uint64_t> send(Message message, bool& post);
  std::size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  // From now on send() fails; the first reason wins. With a flush, a goodbye follows the queue.
  void refuse(const absl::Status& reason);
  // As refuse(), and drops the queue.
  void end(const absl::Status& reason);

  // Starts to use the endpoint.
  void start_in_loop(ucp_ep_h endpoint) { endpoint_ = endpoint; }
  // Sends a message of the opening.
  void post_opening_in_loop(UcxOpening::Outgoing message);
  // Stops to use the endpoint. Its outstanding operations will complete.
  void stop_in_loop() { endpoint_ = nullptr; }
  // Sets the messages of a failed attempt to connect aside.
  void abandon_in_loop();
  // Passes a queued message to UCX, and others until the time of the loop's round is over (turns.h). A later
  // round goes on with the rest; calls until then do nothing.
  void post_queued_in_loop();
  // Number of pieces that UCX has not completed.
  std::size_t outstanding() const { return outstanding_; }
  // Called when UCX makes no more callbacks.
  void worker_ended_in_loop();

 private:
  // An outgoing message, with the memory that UCX reads until it has reported that each piece was sent. It
  // must not move after it was passed to UCX.
  struct Outgoing {
    struct Piece {
      Outgoing* message = nullptr;
      std::array<char, UcxHead::kBytes> head = {};
      Buffer buffer;
    };

    UcxSender* sender = nullptr;
    // The endpoint on which it was passed to UCX.
    ucp_ep_h endpoint = nullptr;
    std::string frame;
    Piece frame_piece;
    // The buffers that are sent separately.
    std::vector<Piece> buffers;
    // The size of the message, for the limits; and those of its bytes that queued_bytes() counts.
    std::size_t bytes = 0;
    std::size_t queued_bytes = 0;
    // Number of unsent pieces, plus one during submission.
    std::size_t unsent_pieces = 0;
  };

  void post_in_loop(std::unique_ptr<Outgoing> message);
  void defer_in_loop();
  void post_goodbye_in_loop(uint64_t sequence);
  void post_piece_in_loop(Outgoing::Piece& piece, const void* data, std::size_t bytes, unsigned flags);
  static void on_sent(void* request, ucs_status_t status, void* piece);
  void piece_sent_in_loop(Outgoing::Piece& piece, ucs_status_t status);
  void count_down_in_loop(Outgoing& message);

  LoopConnection& connection_;
  UcxContext& context_;
  const std::function<void(absl::Status)> settle_;

  // The members below are used only by the loop's driver.
  ucp_ep_h endpoint_ = nullptr;
  bool goodbye_sent_ = false;
  // A deferred task will pass on the next messages.
  bool deferred_ = false;
  // Messages that were passed to UCX, in the order of their tickets. A sent message is removed when all
  // messages before it have been sent. abandoned_ has those of failed attempts to connect.
  std::deque<std::unique_ptr<Outgoing>> posted_;
  std::vector<std::unique_ptr<Outgoing>> abandoned_;
  std::size_t posted_bytes_ = 0;
  std::size_t outstanding_ = 0;

  Mutex mutex_;
  // The reason why send() fails, once the connection is closed.
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  // A ticket is the sequence number of its message.
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<std::unique_ptr<Outgoing>> queue_ ABSL_GUARDED_BY(mutex_);
  // The loop will check the queue.
  bool post_pending_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<std::size_t> queued_bytes_{0};
};

}  // namespace gradwire::transport
