#include "gradwire/transport/tcp/listening_socket.h"

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
#include "gradwire/base/random_id.h"
#include "gradwire/transport/tcp/address.h"

namespace gradwire::transport {
namespace {

constexpr int kAttempts = 10;
constexpr uint64_t kLongestPauseMicroseconds = 5'000;

struct Attempt {
  Descriptor socket;
  int error = 0;  // An errno; 0 if the socket can be used.
};

Attempt bind_to(const SocketAddress& address) {
  Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
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

}  // namespace

absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port) {
  return internal::listening_socket(host, port,
                                    [](int descriptor) { return ::listen(descriptor, SOMAXCONN); });
}

absl::StatusOr<ListeningSocket> internal::listening_socket(const std::string& host, int port,
                                                           ListenCall listen_call) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, resolve_bind_addresses(host, port));
  std::string cause = "no address";
  for (const SocketAddress& address : addresses) {
    Attempt attempt = listen_at(address, listen_call);
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    if (attempt.error == 0 && ::getsockname(attempt.socket.get(), bound.get(), &bound.length) == 0) {
      // The port has the same offset in both address families.
      const int bound_port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
      return ListeningSocket{std::move(attempt.socket), bound_port};
    }
    cause = absl::StrCat(to_string(address), ": ", std::strerror(attempt.error != 0 ? attempt.error : errno));
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", cause));
}

}  // namespace gradwire::transport
