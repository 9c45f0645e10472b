#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::store {

// A UDP socket of one multicast group, IPv4 or IPv6, on every interface that is up. These include the
// loopback interface, so that members on one machine meet even without a network. Datagrams stay on the local
// network. A member also receives its own datagrams.
//
// Use from one thread at a time; wake() may be called from any thread.
class MulticastSocket {
 public:
  // Joins the group. Unavailable if no interface can join it; FailedPrecondition if another program uses the
  // port exclusively.
  static absl::StatusOr<std::unique_ptr<MulticastSocket>> open(const Endpoint& group);
  ~MulticastSocket();
  MulticastSocket(const MulticastSocket&) = delete;
  MulticastSocket& operator=(const MulticastSocket&) = delete;

  // Sends on all interfaces. A datagram that an interface does not accept is lost.
  void send(absl::string_view datagram);

  struct Datagram {
    std::string bytes;
    std::string sender;  // The sender's address, with the zone if it needs one.
  };
  // Returns nullopt if nothing arrived within `timeout` (at most 10 s), or if wake() was called.
  std::optional<Datagram> receive(absl::Duration timeout);
  // Makes the current and all later calls of receive() return at once.
  void wake();

 private:
  MulticastSocket(Descriptor fd, Descriptor wake_fd, const Endpoint& group);
  absl::Status join();

  const Descriptor fd_;
  const Descriptor wake_fd_;
  const Endpoint group_;
  const bool v6_;
  std::vector<unsigned> interfaces_;  // The interfaces that joined the group.
};

}  // namespace gradwire::store
