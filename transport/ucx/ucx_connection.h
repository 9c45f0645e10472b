#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_frame.h"
#include "gradwire/transport/ucx/ucx_outgoing.h"

namespace gradwire::transport {

// One end of a connection over UCX: an endpoint, messages on their way out, and messages that have come in part.
//
// States: kConnecting (until the other end's hello) -> kOpen -> kClosing -> kClosed. kClosing is between
// close() and on_closed: with a flush, it lasts until the other end has answered this one's goodbye by closing, or the
// flush time is over. A closed one retires: while UCX may still read memory for the other end, the endpoint stays, for
// a time that the options bound.
//
// send() makes frames and copies on its caller's thread. All else, and every call to UCX, happens on the loop's driver.
class UcxConnection : public Connection, public std::enable_shared_from_this<UcxConnection> {
 public:
  static constexpr unsigned kActiveMessageId = 0;

  UcxConnection(std::shared_ptr<UcxContext> context, std::string peer_address);
  ~UcxConnection() override;

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  // Nothing borrowed is read after send().
  void capture(uint64_t) override {}
  void close(absl::Status reason, absl::Duration flush) override;
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override { return queued_bytes_.load(std::memory_order_relaxed); }
  std::string peer_address() const override { return peer_address_; }

  // Tries the candidates in order until `deadline`.
  void connect_in_loop(std::vector<SocketAddress> candidates, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Takes what has connected.
  void adopt_in_loop(ucp_conn_request_h request, std::shared_ptr<ConnectionListener> listener);
  // Nobody wants it.
  void refuse_in_loop();

  // From UCX's callbacks. The first has the meaning of ucp_am_recv_callback_t.
  ucs_status_t receive_in_loop(absl::string_view head, void* data, std::size_t data_bytes, bool rendezvous);
  void endpoint_failed_in_loop(ucs_status_t status);

  // False if it was marked already.
  bool mark_touched_in_loop() { return !std::exchange(touched_, true); }
  // Delivers what has come, sends what is queued, ends if it must.
  void settle_in_loop();
  // Ends the connection unless a flush is under way.
  void shut_down_in_loop();
  // UCX calls no more.
  void worker_ended_in_loop();

 private:
  enum class State { kConnecting, kOpen, kClosing, kClosed };

  // A buffer that was announced before its message's frame has come.
  struct Held {
    UcxHead head;
    void* descriptor;
  };
  // A message that has come in part.
  struct Incoming {
    UcxHead::Kind kind = UcxHead::Kind::kMessage;
    bool frame_begun = false;
    bool framed = false;
    // Buffers that have not come whole.
    std::size_t missing = 0;
    std::vector<uint64_t> sizes;
    Message message;
    std::vector<Held> held;
  };
  // What UCX is receiving by rendezvous.
  struct Arrival {
    UcxConnection* connection = nullptr;
    // What next_candidate_ was.
    std::size_t attempt = 0;
    UcxHead head;
    Buffer buffer;
    std::list<Arrival>::iterator self;
  };

  // Connecting (ucx_connect.cc).
  void try_next_candidate_in_loop();
  void candidate_failed_in_loop(std::string cause);
  absl::Status create_endpoint_in_loop(ucp_ep_params_t& params);

  // Sending (ucx_write.cc).
  void post_queued_in_loop();
  void post_in_loop(std::unique_ptr<UcxOutgoing> message);
  void post_control_in_loop(UcxHead::Kind kind, uint64_t sequence);
  void post_piece_in_loop(UcxOutgoing::Piece& piece, const void* data, std::size_t bytes, unsigned flags);
  static void on_sent(void* request, ucs_status_t status, void* piece);
  void piece_left_in_loop(UcxOutgoing::Piece& piece, ucs_status_t status);
  void count_down_in_loop(UcxOutgoing& message);

  // Receiving (ucx_read.cc).
  absl::Status receive_frame_in_loop(Incoming& incoming, const UcxHead& head, void* data,
                                     std::size_t data_bytes, bool rendezvous);
  absl::Status accept_frame_in_loop(Incoming& incoming, const UcxHead& head, absl::string_view data);
  absl::Status begin_buffer_in_loop(Incoming& incoming, const UcxHead& head, void* descriptor);
  absl::Status begin_arrival_in_loop(const UcxHead& head, Buffer buffer, void* descriptor);
  static void on_arrived(void* request, ucs_status_t status, std::size_t bytes, void* arrival);
  void arrived_in_loop(Arrival& arrival, ucs_status_t status);
  void deliver_in_loop();
  void drop_incoming_in_loop();

  // Closing (ucx_connection.cc).
  void begin_close_in_loop(absl::Time deadline);
  void finish_in_loop(absl::Status reason);
  void retire_in_loop();
  void close_endpoint_in_loop();
  void fail_in_loop(absl::Status failure);
  absl::Status unavailable(absl::string_view cause) const;

  const std::shared_ptr<UcxContext> context_;
  const std::string peer_address_;

  // Those below belong to the loop's driver.
  std::shared_ptr<ConnectionListener> listener_;
  ucp_ep_h endpoint_ = nullptr;
  bool touched_ = false;
  // UCX said that the endpoint is of no use any more.
  bool endpoint_failed_ = false;
  // Why the connection, or the attempt to make it, is to end.
  std::optional<absl::Status> failure_;
  // The other end has said hello: messages may leave. Not before, even though UCX would queue them: what it keeps
  // while it still chooses its paths it may send on one that cannot take it (1.13, with its shared memory).
  bool connected_ = false;
  // The other end has said goodbye: it sends nothing more and wants nothing more.
  bool peer_left_ = false;
  bool goodbye_sent_ = false;
  std::vector<SocketAddress> candidates_;
  std::size_t next_candidate_ = 0;
  absl::Time connect_deadline_;
  std::string last_connect_error_;
  uint64_t candidate_timer_ = 0;
  uint64_t close_timer_ = 0;
  uint64_t linger_timer_ = 0;

  // What UCX has, in the order of their tickets; what has left goes once all before it has. And what an attempt to
  // connect has left behind.
  std::deque<std::unique_ptr<UcxOutgoing>> posted_;
  std::vector<std::unique_ptr<UcxOutgoing>> abandoned_;
  std::size_t posted_bytes_ = 0;
  // Pieces and arrivals that UCX has.
  std::size_t outstanding_ = 0;

  // From next_sequence_ on.
  std::deque<Incoming> incoming_;
  uint64_t next_sequence_ = 0;
  std::size_t held_count_ = 0;
  std::list<Arrival> arrivals_;

  Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kConnecting;
  // Why it was closed, from the first close() or failure on.
  std::optional<absl::Status> close_reason_ ABSL_GUARDED_BY(mutex_);
  // A ticket is the sequence number of its message.
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<std::unique_ptr<UcxOutgoing>> queue_ ABSL_GUARDED_BY(mutex_);
  // The loop will look at the queue.
  bool settle_posted_ ABSL_GUARDED_BY(mutex_) = false;

  std::atomic<std::size_t> queued_bytes_{0};
  // close() was called: nothing is delivered any more.
  std::atomic<bool> close_called_{false};
};

}  // namespace gradwire::transport
