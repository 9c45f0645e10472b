#pragma once

#include <ucp/api/ucp.h>

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

// The receiving side of a connection over UCX: messages that have come in part, until they are delivered in
// order. Part of its connection; for the loop's driver alone.
class UcxReceiver {
 public:
  // `settle`: as the sender's.
  UcxReceiver(LoopConnection& connection, UcxContext& context, std::function<void(absl::Status)> settle)
      : connection_(connection), context_(context), settle_(std::move(settle)) {}

  // From UCX's callback: has the meaning of ucp_am_recv_callback_t.
  ucs_status_t receive_in_loop(absl::string_view head, void* data, std::size_t data_bytes, bool rendezvous);
  // Calls the listener with what has come whole.
  void deliver_in_loop();
  // Nothing of what comes from now on is of interest.
  void stop_in_loop() { stopped_ = true; }
  // Drops what has come, for another attempt to connect or for good.
  void reset_in_loop();
  // Arrivals that UCX has.
  std::size_t outstanding() const { return arrivals_.size(); }
  // UCX calls no more.
  void worker_ended_in_loop() { arrivals_.clear(); }

  // The other end has said hello: messages may leave. Not before, even though UCX would queue them: what it
  // keeps while it still chooses its paths it may send on one that cannot take it (1.13, with its shared
  // memory).
  bool greeted() const { return greeted_; }
  // The other end has said goodbye: it sends nothing more and wants nothing more.
  bool peer_left() const { return peer_left_; }

 private:
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
    UcxReceiver* receiver = nullptr;
    int attempt = 0;
    UcxHead head;
    Buffer buffer;
    std::list<Arrival>::iterator self;
  };

  absl::Status receive_frame_in_loop(Incoming& incoming, const UcxHead& head, void* data,
                                     std::size_t data_bytes, bool rendezvous);
  absl::Status accept_frame_in_loop(Incoming& incoming, const UcxHead& head, absl::string_view data);
  absl::Status begin_buffer_in_loop(Incoming& incoming, const UcxHead& head, void* descriptor);
  absl::Status begin_arrival_in_loop(const UcxHead& head, Buffer buffer, void* descriptor);
  static void on_arrived(void* request, ucs_status_t status, std::size_t bytes, void* arrival);
  void arrived_in_loop(Arrival& arrival, ucs_status_t status);

  LoopConnection& connection_;
  UcxContext& context_;
  const std::function<void(absl::Status)> settle_;

  bool stopped_ = false;
  bool greeted_ = false;
  bool peer_left_ = false;
  // How often it was reset.
  int attempt_ = 0;
  // From next_sequence_ on.
  std::deque<Incoming> incoming_;
  uint64_t next_sequence_ = 0;
  std::size_t held_count_ = 0;
  std::list<Arrival> arrivals_;
};

}  // namespace gradwire::transport
