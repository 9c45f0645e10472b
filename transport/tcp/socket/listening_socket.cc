#include "gradwire/transport/tcp/socket/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::transport {
namespace {

constexpr int kAttempts = 10;
constexpr uint64_t kLongestPauseMicroseconds = 5'000;

struct Attempt {
  Descriptor socket;
  int error = 0;  // An errno; 0 if the socket can be used.
};

Attempt bind_to(const SocketAddress& address) {
  Descriptor socket = Descriptor::from(
      [&] { return ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!socket.valid()) return {.error = errno};
  int one = 1, zero = 0;
  // A port can be reused while old connections of it linger (TIME_WAIT), but not while it is in use.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.storage.ss_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  }
  if (::bind(socket.get(), address.get(), address.length) != 0) return {.error = errno};
  return {.socket = std::move(socket)};
}

// SO_REUSEADDR lets several sockets bind a port on which none of them listens yet. If two of them call
// listen() at the same instant, Linux marks both as listening before it checks for conflicts, finds a
// conflict for each, and refuses both with EADDRINUSE: then no socket listens. So a socket that listen()
// refuses is closed, and the attempt is repeated after a random time. If another process listens by then,
// bind() fails, which is final.
Attempt listen_at(const SocketAddress& address, internal::ListenCall listen_call) {
  for (int attempt = 1;; ++attempt) {
    Attempt result = bind_to(address);
    if (result.error != 0 || listen_call(result.socket.get()) == 0) return result;
    result = {.error = errno};
    if (result.error != EADDRINUSE || attempt == kAttempts) return result;
    absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random_id() % kLongestPauseMicroseconds)));
  }
}

int listen_on(int descriptor) { return ::listen(descriptor, SOMAXCONN); }

// The port has the same offset in both address families. 0 if the socket has none.
int port_of(int socket) {
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (::getsockname(socket, bound.get(), &bound.length) != 0) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
}

}  // namespace

absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port) {
  return internal::listening_socket(host, port, listen_on);
}

// With port 0 the first address gets a free port, which may be in use at the second one: then try again.
absl::StatusOr<ListeningSockets> loopback_listening_sockets(int port) {
  std::string cause = "no address";
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    ListeningSockets sockets{.descriptors = {}, .port = port};
    bool in_use = false;
    for (std::size_t i = 0; i < 2; ++i) {
      const SocketAddress address = loopback_addresses(sockets.port)[i];
      Attempt listening = listen_at(address, listen_on);
      if (listening.error == 0) {
        sockets.port = port_of(listening.socket.get());
        sockets.descriptors.push_back(std::move(listening.socket));
        continue;
      }
      if (is_shortage(listening.error))
        return system_status(absl::StrCat("cannot listen on ", to_string(address)), listening.error);
      cause = absl::StrCat(to_string(address), ": ", std::strerror(listening.error));
      const bool absent = listening.error == EAFNOSUPPORT || listening.error == EADDRNOTAVAIL;
      if (!absent) in_use = true;
    }
    if (!in_use && !sockets.descriptors.empty()) return sockets;
    if (port != 0) break;
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", cause));
}

absl::StatusOr<ListeningSocket> internal::listening_socket(const std::string& host, int port,
                                                           ListenCall listen_call) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, resolve_bind_addresses(host, port));
  std::string cause = "no address";
  for (const SocketAddress& address : addresses) {
    Attempt attempt = listen_at(address, listen_call);
    if (attempt.error == 0) {
      const int bound_port = port_of(attempt.socket.get());
      if (bound_port != 0) return ListeningSocket{std::move(attempt.socket), bound_port};
    }
    if (is_shortage(attempt.error))
      return system_status(absl::StrCat("cannot listen on ", to_string(address)), attempt.error);
    cause = absl::StrCat(to_string(address), ": ", std::strerror(attempt.error != 0 ? attempt.error : errno));
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", cause));
}

}  // namespace gradwire::transport
