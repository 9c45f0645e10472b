#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/transport/transport.h"
#include "gradwire/transport/ucx/ucx_context.h"

namespace gradwire::transport {

// Accepts connections. Owned by the context; used only by the loop's driver.
class UcxListener {
 public:
  // Unavailable with the address and the cause, for example a port that is in use.
  static absl::StatusOr<std::unique_ptr<UcxListener>> create(UcxContext& context,
                                                             Transport::AcceptHandler on_accept);
  // Rejects unanswered requests.
  ~UcxListener();
  UcxListener(const UcxListener&) = delete;
  UcxListener& operator=(const UcxListener&) = delete;

  int port() const { return port_; }
  // Whether there are unanswered connection requests.
  bool has_requests() const { return !requests_.empty(); }
  // Answers a connection request, and further ones until the time of the loop's round is over (turns.h). It
  // makes an endpoint for a request, or rejects it if all places are taken
  // (transport/tcp/admission/admission.h). Must not be called from UCX's callbacks.
  void accept_in_loop();
  // Returns the listener of a connection whose peer has proved who it is; nullptr: it is refused.
  std::shared_ptr<ConnectionListener> accepted_in_loop(const std::shared_ptr<Connection>& connection) {
    return on_accept_(connection);
  }

 private:
  UcxListener(UcxContext& context, Transport::AcceptHandler on_accept)
      : context_(context), on_accept_(std::move(on_accept)) {}
  static void on_request(ucp_conn_request_h request, void* listener);

  UcxContext& context_;
  const Transport::AcceptHandler on_accept_;
  ucp_listener_h listener_ = nullptr;
  int port_ = 0;
  std::deque<ucp_conn_request_h> requests_;
};

}  // namespace gradwire::transport
