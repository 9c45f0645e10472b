#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "gradwire/transport/common/loop_connection.h"
#include "gradwire/transport/shm/memory/control_socket.h"

namespace gradwire::transport {

// Wakes the peer of a connection. The peer asks for the doorbell once, and then sleeps until it rings. So if
// the kernel has no memory for the packet, this rings again later. It is a part of its connection.
class Doorbell {
 public:
  Doorbell(LoopConnection& connection, std::shared_ptr<ControlSocket> socket)
      : connection_(connection), socket_(std::move(socket)) {}

  // May be called from any thread.
  void ring();
  // The peer is not rung any more.
  void end_in_loop();

 private:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
  static constexpr absl::Duration kLongestPause = absl::Milliseconds(100);

  void ring_later_in_loop(absl::Duration pause);

  LoopConnection& connection_;
  const std::shared_ptr<ControlSocket> socket_;
  // A task or timer will ring.
  std::atomic<bool> due_{false};
  // Used only by the loop's driver.
  uint64_t timer_ = 0;
  bool ended_ = false;
};

}  // namespace gradwire::transport
