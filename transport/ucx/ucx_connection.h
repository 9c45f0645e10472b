#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/tcp/admission/admission.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/socket/address_search.h"
#include "gradwire/transport/turns/turn.h"
#include "gradwire/transport/ucx/ucx_attempts.h"
#include "gradwire/transport/ucx/ucx_context.h"
#include "gradwire/transport/ucx/ucx_opening.h"
#include "gradwire/transport/ucx/ucx_receiver.h"
#include "gradwire/transport/ucx/ucx_sender.h"

namespace gradwire::transport {

// One end of a connection over UCX: an endpoint, with an opening, a sender and a receiver that use it. This
// class creates and closes the endpoint. An accepted connection is an arrival until its opening is done. It
// has no listener until then.
//
// A flush lasts until the peer has answered the goodbye of this end by closing. After a connection is closed
// it retires: as long as UCX may still read memory for the peer, the endpoint stays open, for a limited time
// (UcxOptions::linger_time). It also stays open until the peer has read why it was refused.
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
  bool borrows(uint64_t) override { return false; }
  absl::StatusOr<Buffer> allocate(std::size_t size) override { return context_->pool->allocate(size); }
  std::size_t queued_bytes() override { return sender_.queued_bytes(); }
  uint64_t bytes_arrived() const override { return receiver_.bytes_arrived(); }
  bool counts_whole_buffers() const override { return true; }
  security::PeerIdentity peer() const override;

  // Looks up the names among the addresses, and tries the addresses in order, until `deadline`.
  void connect_in_loop(std::vector<HostAddress> addresses, std::shared_ptr<ConnectionListener> listener,
                       absl::Time deadline);
  // Accepts a connection request of a process on `host`, which has this place (admission.h).
  void adopt_in_loop(ucp_conn_request_h request, std::string host, Admission::Id place);
  // Ends an arrival at once, because another one gets its place.
  void give_up_in_loop();

  // Called by UCX's callbacks. Arguments and result of the first one are those of ucp_am_recv_callback_t.
  ucs_status_t receive_in_loop(absl::string_view head, void* data, std::size_t data_bytes, bool rendezvous);
  void endpoint_failed_in_loop(ucs_status_t status);

  // Whether the connection is touched (see UcxContext). Used only by the loop's driver.
  bool touched = false;
  // Delivers complete messages, sends queued ones, and closes the connection if necessary. What the time of
  // the round does not suffice for is done in later ones.
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

  // Makes the connection settle (see UcxContext). If `failure` is not OK, the connection is then
  // closed; the first failure wins.
  void settle_later_in_loop(absl::Status failure);
  // The endpoint has failed.
  void settle_end_in_loop(ucs_status_t status);
  void found_in_loop(absl::StatusOr<std::vector<SocketAddress>> found, absl::Time deadline);
  void begin_attempt_in_loop();
  void end_attempt_in_loop();
  // `deadline`: the time until which the opening must be done.
  void create_endpoint_in_loop(ucp_ep_params_t& params, absl::Time deadline);
  void react_in_loop(UcxOpening::Reaction reaction);
  void retire_in_loop();
  void close_endpoint_in_loop();

  const std::shared_ptr<UcxContext> context_;
  UcxSender sender_;

  // The members below are used only by the loop's driver, except the last ones.
  UcxReceiver receiver_;
  // While an endpoint exists and the opening is not done.
  std::unique_ptr<UcxOpening> opening_;
  // The opening is done: frames may be sent and delivered. UCX would queue earlier ones, but it may send them
  // on a path that cannot carry them while it is still choosing its paths (UCX 1.13 with its shared memory).
  bool opened_ = false;
  // The connection is closed.
  bool ended_ = false;
  ucp_ep_h endpoint_ = nullptr;
  // The turn of an arrival.
  Turn turn_;
  // UCX has reported that the endpoint has failed.
  bool endpoint_failed_ = false;
  // The connecting end: UCX has reported that the peer has rejected or closed the connection.
  bool turned_away_ = false;
  // The peer may be reading why it was refused: the endpoint stays open until it closes its end.
  bool farewell_ = false;
  // The reason to close the connection, or to give up the current attempt to connect.
  std::optional<absl::Status> failure_;
  uint64_t opening_timer_ = 0;
  uint64_t linger_timer_ = 0;

  // The connecting end. The last two are set when the addresses have been found.
  std::shared_ptr<AddressSearch> search_;
  std::vector<SocketAddress> candidates_;
  std::optional<UcxAttempts> attempts_;
  // The accepting end.
  std::string host_;
  Admission::Id place_ = 0;

  mutable Mutex mutex_;
  security::PeerIdentity peer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
