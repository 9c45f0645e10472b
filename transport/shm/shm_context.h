#pragma once

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/io/spare_descriptor.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/local_peer/user_guard.h"
#include "gradwire/transport/common/loop_context.h"
#include "gradwire/transport/shm/memory/control_socket.h"
#include "gradwire/transport/shm/shm_transport.h"

namespace gradwire::transport {

// The state that a shared memory transport shares with its connections.
struct ShmContext : LoopContext {
  ShmContext(ShmOptions given, std::shared_ptr<EventLoop> given_loop)
      : LoopContext(given.pool, std::move(given_loop)),
        options(std::move(given)),
        users(options.allowed_users),
        counters(options.counters != nullptr ? options.counters : std::make_shared<ShmCounters>()) {
    introduction_timeout = options.introduction_timeout;
  }

  const ShmOptions options;
  // Receives the next packet, with the spare descriptor if no other is free. After the packet was handled and
  // its descriptors are closed, spare.occupy() must follow.
  ControlSocket::Receipt receive_in_loop(ControlSocket& socket, ControlPacket& packet) {
    const ControlSocket::Receipt receipt = socket.receive(packet);
    if (receipt != ControlSocket::Receipt::kNoDescriptors || !spare.release()) return receipt;
    return socket.receive(packet);
  }

  // Used only by the loop's driver.
  security::UserGuard users;
  // The shortage after receive_in_loop() has returned kNoDescriptors for `what`.
  absl::Status shortage_in_loop(absl::string_view what) {
    const int error = spare.occupy();
    return system_status(what, error != 0 ? error : EMFILE);
  }

  // A process at its limit of descriptors still maps the memory of its peers: it needs the descriptor only
  // until the memory is mapped.
  SpareDescriptor spare;
  const std::shared_ptr<ShmCounters> counters;
};

}  // namespace gradwire::transport
