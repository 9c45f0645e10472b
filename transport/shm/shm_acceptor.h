#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "transport/descriptor.h"
#include "transport/event_loop.h"
#include "transport/shm/shm_address.h"
#include "transport/shm/shm_context.h"
#include "transport/transport.h"

namespace gradwire::transport {

// A socket that listens at `address`. Unavailable with the cause.
absl::StatusOr<Descriptor> listen_at(const ShmAddress& address);

// Takes in the connections of a listening socket. Runs on the loop's driver alone.
class ShmAcceptor : public EventHandler, public std::enable_shared_from_this<ShmAcceptor> {
 public:
  ShmAcceptor(std::shared_ptr<ShmContext> context, Descriptor socket, Transport::AcceptHandler on_accept)
      : context_(std::move(context)),
        socket_(std::move(socket)),
        on_accept_(std::make_shared<const Transport::AcceptHandler>(std::move(on_accept))) {}

  void start_in_loop();
  void stop_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void accept_in_loop();

  const std::shared_ptr<ShmContext> context_;
  Descriptor socket_;
  // Shared with the connections that have not said hello yet.
  std::shared_ptr<const Transport::AcceptHandler> on_accept_;
  uint64_t handler_id_ = 0;
  uint64_t retry_timer_ = 0;
  // Told once, not with every retry.
  bool out_of_descriptors_ = false;
};

}  // namespace gradwire::transport
