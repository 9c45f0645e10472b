#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

// Takes in what connects to a listening socket. Runs on the loop's driver alone.
class Acceptor : public EventHandler, public std::enable_shared_from_this<Acceptor> {
 public:
  // A socket that has connected, non-blocking, and the address at its other end.
  using OnSocket = std::function<void(Descriptor socket, const sockaddr_storage& peer, socklen_t length)>;

  Acceptor(std::shared_ptr<EventLoop> loop, Descriptor socket, OnSocket on_socket)
      : loop_(std::move(loop)), on_socket_(std::move(on_socket)), socket_(std::move(socket)) {}

  void start_in_loop();
  // Not from `on_socket`.
  void stop_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void accept_in_loop();

  const std::shared_ptr<EventLoop> loop_;
  OnSocket on_socket_;
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  uint64_t retry_timer_ = 0;
  // Told once, not with every retry.
  bool out_of_descriptors_ = false;
};

}  // namespace gradwire::transport
