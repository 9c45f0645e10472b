#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/message.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_frame.h"

namespace gradwire::transport {

// The receiving side of a connection over UCX, after its opening. It keeps incomplete messages and delivers
// complete ones in order. It is a part of its connection. Used only by the loop's driver, except for
// bytes_arrived().
class UcxReceiver {
 public:
  // `settle`: see UcxSender.
  UcxReceiver(LoopConnection& connection, UcxContext& context, std::function<void(absl::Status)> settle)
      : connection_(connection), context_(context), settle_(std::move(settle)) {}

  // Called by UCX's callback; arguments and result are those of ucp_am_recv_callback_t.
  ucs_status_t receive_in_loop(absl::string_view head, void* data, std::size_t data_bytes, bool rendezvous);
  // Passes a complete message to the listener, and others until the time of the loop's round is over
  // (turns.h). A later round goes on with the rest; calls until then do nothing.
  void deliver_in_loop();
  // Whether complete messages wait for a later round. It calls `settle` when it has delivered some.
  bool deferred_in_loop() const { return deferred_; }
  // From now on received data is ignored.
  void stop_in_loop() { stopped_ = true; }
  // Drops the received data, before another attempt to connect or at the end.
  void reset_in_loop();
  // The bytes of messages that waited for a buffer when they were the next ones to deliver, and of the frames
  // that arrived behind them.
  uint64_t bytes_arrived() const { return bytes_arrived_.load(std::memory_order_relaxed); }
  // Number of outstanding receive operations of UCX.
  std::size_t outstanding() const { return arrivals_.size(); }
  // Called when UCX makes no more callbacks.
  void worker_ended_in_loop() { arrivals_.clear(); }

  // Whether the peer's goodbye has been received: it sends nothing more and needs nothing more.
  bool peer_left() const { return peer_left_; }

 private:
  // A buffer that was announced before the frame of its message arrived.
  struct Held {
    UcxHead head;
    void* descriptor;
  };
  // An incomplete message.
  struct Incoming {
    UcxHead::Kind kind = UcxHead::Kind::kMessage;
    bool frame_begun = false;
    bool framed = false;
    // Number of incomplete buffers, and their bytes.
    std::size_t missing = 0;
    uint64_t missing_bytes = 0;
    // It was announced to the listener.
    bool announced = false;
    std::vector<uint64_t> sizes;
    Message message;
    std::vector<Held> held;
  };
  // A receive operation of UCX, by rendezvous.
  struct Reception {
    UcxReceiver* receiver = nullptr;
    int attempt = 0;
    UcxHead head;
    Buffer buffer;
    std::list<Reception>::iterator self;
  };

  absl::Status receive_frame_in_loop(Incoming& incoming, const UcxHead& head, void* data,
                                     std::size_t data_bytes, bool rendezvous);
  absl::Status accept_frame_in_loop(Incoming& incoming, const UcxHead& head, absl::string_view data);
  absl::Status begin_buffer_in_loop(Incoming& incoming, const UcxHead& head, void* descriptor);
  absl::Status begin_arrival_in_loop(const UcxHead& head, Buffer buffer, void* descriptor);
  void defer_in_loop();
  // Announces the next message to the listener, once, if it waits for a buffer.
  void announce_in_loop();
  void count_bytes_in_loop(uint64_t bytes) {
    bytes_arrived_.store(bytes_arrived() + bytes, std::memory_order_relaxed);
  }
  // Counts the messages that wait for a later round in UcxContext.
  void count_waiting_in_loop();
  static void on_arrived(void* request, ucs_status_t status, std::size_t bytes, void* arrival);
  // Ends an operation, and then uses what has arrived. An exception ends the connection.
  void arrived_in_loop(Reception& arrival, ucs_status_t status) noexcept;
  void use_arrival_in_loop(Reception& arrival, ucs_status_t status);

  LoopConnection& connection_;
  UcxContext& context_;
  const std::function<void(absl::Status)> settle_;

  bool stopped_ = false;
  bool peer_left_ = false;
  // A deferred task will deliver the next messages.
  bool deferred_ = false;
  // The part of this connection in UcxContext::waiting_messages.
  std::size_t counted_ = 0;
  // Number of resets.
  int attempt_ = 0;
  // The messages from next_sequence_ on.
  std::deque<Incoming> incoming_;
  uint64_t next_sequence_ = 1;
  std::size_t held_count_ = 0;
  std::list<Reception> arrivals_;
  std::atomic<uint64_t> bytes_arrived_{0};
};

}  // namespace gradwire::transport
