#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/transport/event_loop.h"

namespace gradwire::transport {

// Accepts connections on a listening socket. Runs on the driver of the loop.
class Acceptor : public EventHandler, public std::enable_shared_from_this<Acceptor> {
 public:
  // Called with each accepted socket, which is non-blocking, and the address of its peer.
  using OnSocket = std::function<void(Descriptor socket, const sockaddr_storage& peer, socklen_t length)>;

  Acceptor(std::shared_ptr<EventLoop> loop, Descriptor socket, OnSocket on_socket)
      : loop_(std::move(loop)), on_socket_(std::move(on_socket)), socket_(std::move(socket)) {}

  void start_in_loop();
  // Must not be called from `on_socket`.
  void stop_in_loop();

 private:
  void on_events_in_loop(uint32_t events) override;
  void failed_in_loop(const absl::Status& error) override;
  void accept_later_in_loop();
  // Accepts one connection, and others until the time of the round is over.
  void accept_in_loop();

  const std::shared_ptr<EventLoop> loop_;
  OnSocket on_socket_;
  Descriptor socket_;
  uint64_t handler_id_ = 0;
  uint64_t retry_timer_ = 0;
  // A deferred task will go on.
  bool deferred_ = false;
  // The shortage of descriptors was logged: it is logged once, not at each retry.
  bool out_of_descriptors_ = false;
};

}  // namespace gradwire::transport
