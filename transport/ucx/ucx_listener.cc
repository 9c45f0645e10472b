#include "gradwire/transport/ucx/ucx_listener.h"

#include <netinet/in.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/contained.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/ucx/ucx_connection.h"

namespace gradwire::transport {
namespace {

SocketAddress address_of(ucp_conn_request_h request) {
  ucp_conn_request_attr_t attributes = {};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  SocketAddress address;
  if (ucp_conn_request_query(request, &attributes) == UCS_OK) {
    address = socket_address(attributes.client_address);
  }
  return address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxListener>> UcxListener::create(UcxContext& context,
                                                                 Transport::AcceptHandler on_accept) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses,
                            resolve_bind_addresses(context.options.bind_address, context.options.port));
  // UCX 1.13 drops IPv4 connections to an IPv6 socket, because it does not recognise its interface in their
  // mapped address. So a listener for all interfaces can have only one address family: try IPv4 first.
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& address) { return address.storage.ss_family == AF_INET; });
  std::unique_ptr<UcxListener> listener(new UcxListener(context, std::move(on_accept)));
  absl::Status failure = absl::UnavailableError("cannot listen: the host has no address");
  for (const SocketAddress& address : addresses) {
    ucp_listener_params_t params = {};
    params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr = {address.get(), address.length};
    params.conn_handler = {&UcxListener::on_request, listener.get()};
    ucs_status_t status = ucp_listener_create(context.worker->get(), &params, &listener->listener_);
    if (status == UCS_OK) {
      ucp_listener_attr_t attributes = {};
      attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
      status = ucp_listener_query(listener->listener_, &attributes);
      if (status == UCS_OK) {
        // The port has the same offset in both address families.
        listener->port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&attributes.sockaddr)->sin_port);
        return listener;
      }
    } else {
      listener->listener_ = nullptr;
    }
    failure = ucx_error(absl::StrCat("cannot listen on ", to_string(address)), status);
  }
  return failure;
}

// Requests that were not accepted yet are rejected first: they refer to the listener.
UcxListener::~UcxListener() {
  for (ucp_conn_request_h request : requests_) ucp_listener_reject(listener_, request);
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

void UcxListener::on_request(ucp_conn_request_h request, void* listener) {
  // Inside a callback of UCX: only record the request. accept_in_loop() calls the user.
  UcxListener& self = *static_cast<UcxListener*>(listener);
  at_boundary(
      "a request to connect over ucx", [&] { self.requests_.push_back(request); },
      [&](const absl::Status&) { ucp_listener_reject(self.listener_, request); });
}

void UcxListener::accept_in_loop() {
  Turns& turns = context_.loop->turns_in_loop();
  for (bool first = true; !requests_.empty() && (first || !turns.spent()); first = false) {
    const ucp_conn_request_h request = requests_.front();
    requests_.pop_front();
    const SocketAddress address = address_of(request);
    const Admission::Id place = context_.arrivals.arrive_in_loop(host_to_string(address));
    if (place == 0) {
      ucp_listener_reject(listener_, request);
      context_.activate_in_loop();
      continue;
    }
    std::make_shared<UcxConnection>(context_.keep<UcxContext>(), to_string(address))
        ->adopt_in_loop(request, host_to_string(address), place);
  }
}

}  // namespace gradwire::transport
