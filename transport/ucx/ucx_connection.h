#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/address.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_receiver.h"
#include "gradwire/transport/ucx/ucx_sender.h"

namespace gradwire::transport {

// One end of a connection over UCX: an endpoint, which a sender and a receiver use. This makes it and ends
// it.
//
// A flush lasts until the other end has answered this one's goodbye by closing. A connection that has ended
// retires: while UCX may still read memory for the other end, the endpoint stays, for a time that the options
// bound.
//
// send() makes frames and copies on its caller's thread. All else, and every call to UCX, happens on the
// loop's driver.
class UcxConnection : public LoopConnection {
 public:
  UcxConnection(std::shared_ptr<UcxContext> context, std::string peer_address);

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  // Nothing borrowed is read after send().
  void capture(uint64_t) override {}
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override { return sender_.queued_bytes(); }

  // Tries the candidates in order until `deadline`.
  void connect_in_loop(std::vector<SocketAddress> candidates, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Takes what has connected.
  void adopt_in_loop(ucp_conn_request_h request, std::shared_ptr<ConnectionListener> listener);

  // From UCX's callbacks.
  UcxReceiver& receiver() { return receiver_; }
  void endpoint_failed_in_loop(ucs_status_t status);

  // False if it was marked already.
  bool mark_touched_in_loop() { return !std::exchange(touched_, true); }
  // Delivers what has come, sends what is queued, ends if it must.
  void settle_in_loop();
  // UCX calls no more.
  void worker_ended_in_loop();

 private:
  // LoopConnection
  void refuse_sends(const absl::Status& reason) override { sender_.refuse(reason); }
  void flush_in_loop() override {
    settle_later_in_loop(absl::OkStatus());
    context_->activate_in_loop();
  }
  void release_in_loop(const absl::Status& reason) override;
  bool greeted_in_loop() const override { return receiver_.greeted(); }

  // Has the connection settle at the end of the round. It ends then unless `failure` is OK; the first failure
  // counts.
  void settle_later_in_loop(absl::Status failure);
  // Gives the other end of the endpoint until then to say hello.
  void await_hello_in_loop(absl::Time deadline);
  void try_next_candidate_in_loop();
  void create_endpoint_in_loop(ucp_ep_params_t& params);
  void retire_in_loop();
  void close_endpoint_in_loop();

  const std::shared_ptr<UcxContext> context_;
  UcxSender sender_;

  // Those below belong to the loop's driver.
  UcxReceiver receiver_;
  ucp_ep_h endpoint_ = nullptr;
  bool touched_ = false;
  // UCX said that the endpoint is of no use any more.
  bool endpoint_failed_ = false;
  // Why the connection, or the attempt to make it, is to end.
  std::optional<absl::Status> failure_;
  std::vector<SocketAddress> candidates_;
  std::size_t next_candidate_ = 0;
  absl::Time connect_deadline_;
  uint64_t hello_timer_ = 0;
  uint64_t linger_timer_ = 0;
};

}  // namespace gradwire::transport
