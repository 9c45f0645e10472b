#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/descriptor.h"
#include "transport/event_loop.h"
#include "transport/tcp/tcp_context.h"
#include "transport/transport.h"

namespace gradwire::transport {

struct ListeningSocket {
  Descriptor descriptor;
  int port = 0;
};

// A socket that listens. Unavailable with the address and the cause, such as a port that is in use.
absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port);

// Takes in what connects to a listening socket. Runs on the loop's driver alone.
class Acceptor : public EventHandler, public std::enable_shared_from_this<Acceptor> {
 public:
  Acceptor(std::shared_ptr<TcpContext> context, Descriptor socket, Transport::AcceptHandler on_accept)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        on_accept_(std::make_shared<const Transport::AcceptHandler>(std::move(on_accept))) {}

  void start_in_loop();
  void stop_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void accept_in_loop();

  const std::shared_ptr<TcpContext> context_;
  Descriptor socket_;
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  uint64_t handler_id_ = 0;
  uint64_t retry_timer_ = 0;
  // Told once, not with every retry.
  bool out_of_descriptors_ = false;
};

}  // namespace gradwire::transport
