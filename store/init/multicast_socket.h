#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/tcp/endpoint.h"

namespace gradwire::store {

// A UDP socket of one multicast group, IPv4 or IPv6, on every interface that is up, the loopback interface
// included: members on one machine meet also where no network is. Datagrams stay on the local network, and
// members hear themselves.
//
// One thread at a time. wake() may come from any.
class MulticastSocket {
 public:
  // Unavailable if no interface can join the group. FailedPrecondition: another program has the port to
  // itself.
  static absl::StatusOr<std::unique_ptr<MulticastSocket>> open(const Endpoint& group);
  ~MulticastSocket();
  MulticastSocket(const MulticastSocket&) = delete;
  MulticastSocket& operator=(const MulticastSocket&) = delete;

  // On all interfaces; what an interface does not take is lost, as a datagram may be.
  void send(absl::string_view datagram);

  struct Datagram {
    std::string bytes;
    std::string sender;  // Its address, with the zone where it needs one.
  };
  // None: nothing came within `timeout`, or wake() was called.
  std::optional<Datagram> receive(absl::Duration timeout);
  // Makes this and all later waits of receive() end at once.
  void wake();

 private:
  MulticastSocket(int fd, int wake_fd, const Endpoint& group);
  absl::Status join();

  const int fd_;
  const int wake_fd_;
  const Endpoint group_;
  const bool v6_;
  std::vector<unsigned> interfaces_;  // Those that joined.
};

}  // namespace gradwire::store
