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

// One end of a connection over UCX: an endpoint, with a sender and a receiver that use it. This class creates
// and closes the endpoint.
//
// A flush lasts until the peer has answered the goodbye of this end by closing. After a connection is closed
// it retires: as long as UCX may still read memory for the peer, the endpoint stays open, for a limited time
// (UcxOptions::linger_time).
//
// send() encodes frames and copies buffers on its caller's thread. Everything else, and every call to UCX,
// happens on the loop's driver.
class UcxConnection : public LoopConnection {
 public:
  UcxConnection(std::shared_ptr<UcxContext> context, std::string peer_address);

  // Connection
  absl::StatusOr<uint64_t> send(Message message) override;
  // send() copies borrowed buffers, so there is nothing to capture.
  void capture(uint64_t) override {}
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override { return sender_.queued_bytes(); }

  // Tries the candidates in order until `deadline`.
  void connect_in_loop(std::vector<SocketAddress> candidates, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Accepts a connection request.
  void adopt_in_loop(ucp_conn_request_h request, std::shared_ptr<ConnectionListener> listener);

  // Called by UCX's callbacks.
  UcxReceiver& receiver() { return receiver_; }
  void endpoint_failed_in_loop(ucs_status_t status);

  // Marks the connection as touched (see UcxContext). Returns false if it already was.
  bool mark_touched_in_loop() { return !std::exchange(touched_, true); }
  // Delivers complete messages, sends queued ones, and closes the connection if necessary.
  void settle_in_loop();
  // Called when UCX makes no more callbacks.
  void worker_ended_in_loop();

 private:
  // LoopConnection
  void refuse_sends(const absl::Status& reason) override { sender_.refuse(reason); }
  void flush_in_loop() override {
    settle_later_in_loop(absl::OkStatus());
    context_->activate_in_loop();
  }
  void release_in_loop(const absl::Status& reason) override;
  bool is_greeted_in_loop() const override { return receiver_.greeted(); }

  // Makes the connection settle at the end of the round. If `failure` is not OK, the connection is then
  // closed; the first failure wins.
  void settle_later_in_loop(absl::Status failure);
  // Sets the time until which the peer must send its hello.
  void await_hello_in_loop(absl::Time deadline);
  void try_next_candidate_in_loop();
  void create_endpoint_in_loop(ucp_ep_params_t& params);
  void retire_in_loop();
  void close_endpoint_in_loop();

  const std::shared_ptr<UcxContext> context_;
  UcxSender sender_;

  // The members below are used only by the loop's driver.
  UcxReceiver receiver_;
  ucp_ep_h endpoint_ = nullptr;
  bool touched_ = false;
  // UCX has reported that the endpoint has failed.
  bool endpoint_failed_ = false;
  // The reason to close the connection, or to give up the current attempt to connect.
  std::optional<absl::Status> failure_;
  std::vector<SocketAddress> candidates_;
  std::size_t next_candidate_ = 0;
  absl::Time connect_deadline_;
  uint64_t hello_timer_ = 0;
  uint64_t linger_timer_ = 0;
};

}  // namespace gradwire::transport
