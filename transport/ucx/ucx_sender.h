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

namespace gradwire::transport {

// The sending side of a connection over UCX: messages that wait, and those that UCX has.
//
// send() makes frames and copies on its caller's thread; it, refuse() and queued_bytes() may be called from
// any. All else is for the loop's driver. Part of its connection.
class UcxSender {
 public:
  static constexpr unsigned kActiveMessageId = 0;

  // `settle`: called when the connection has something to do behind UCX's callbacks; it is to end if the
  // status says why.
  UcxSender(LoopConnection& connection, UcxContext& context, std::function<void(absl::Status)> settle)
      : connection_(connection), context_(context), settle_(std::move(settle)) {}

  // As Connection::send. `post`: set when the loop is to be told of it.
  absl::StatusOr<uint64_t> send(Message message, bool& post);
  std::size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }
  // send() refuses from now on; the first reason wins. With a flush, a goodbye follows what is queued.
  void refuse(const absl::Status& reason);
  // Refuses, and drops what is queued.
  void end(const absl::Status& reason);

  // Uses the endpoint, and says hello through it.
  void start_in_loop(ucp_ep_h endpoint);
  // The endpoint is of no use any more. What it has comes back.
  void stop_in_loop() { endpoint_ = nullptr; }
  // Forgets what another attempt to connect has left behind.
  void abandon_in_loop();
  // Hands over to UCX what is queued.
  void post_queued_in_loop();
  // Pieces that UCX has.
  std::size_t outstanding() const { return outstanding_; }
  // UCX calls no more.
  void worker_ended_in_loop();

 private:
  // A message on its way out, and what UCX reads of it until it has told that each piece has left. Stays
  // where it is from then on.
  struct Outgoing {
    struct Piece {
      Outgoing* message = nullptr;
      std::array<char, UcxHead::kBytes> head = {};
      Buffer buffer;
    };

    UcxSender* sender = nullptr;
    // The endpoint through which it was handed to UCX.
    ucp_ep_h endpoint = nullptr;
    std::string frame;
    Piece frame_piece;
    // The buffers that travel by themselves.
    std::vector<Piece> buffers;
    // What it counts for.
    std::size_t bytes = 0;
    // Number of pieces that have not left, plus one while they are being handed over.
    std::size_t pieces_left = 0;
  };

  void post_in_loop(std::unique_ptr<Outgoing> message);
  void post_control_in_loop(UcxHead::Kind kind, uint64_t sequence);
  void post_piece_in_loop(Outgoing::Piece& piece, const void* data, std::size_t bytes, unsigned flags);
  static void on_sent(void* request, ucs_status_t status, void* piece);
  void piece_left_in_loop(Outgoing::Piece& piece, ucs_status_t status);
  void count_down_in_loop(Outgoing& message);

  LoopConnection& connection_;
  UcxContext& context_;
  const std::function<void(absl::Status)> settle_;

  // Those below belong to the loop's driver.
  ucp_ep_h endpoint_ = nullptr;
  bool goodbye_sent_ = false;
  // What UCX has, in the order of their tickets; what has left goes once all before it has. And what an
  // attempt to connect has left behind.
  std::deque<std::unique_ptr<Outgoing>> posted_;
  std::vector<std::unique_ptr<Outgoing>> abandoned_;
  std::size_t posted_bytes_ = 0;
  std::size_t outstanding_ = 0;

  Mutex mutex_;
  // Why nothing more is taken.
  std::optional<absl::Status> refusal_ ABSL_GUARDED_BY(mutex_);
  // A ticket is the sequence number of its message.
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<std::unique_ptr<Outgoing>> queue_ ABSL_GUARDED_BY(mutex_);
  // The loop will look at the queue.
  bool post_pending_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<std::size_t> queued_bytes_{0};
};

}  // namespace gradwire::transport
