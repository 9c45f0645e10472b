#include "transport/tcp/listening_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "transport/tcp/address.h"

namespace gradwire::transport {

absl::StatusOr<ListeningSocket> listening_socket(const std::string& host, int port) {
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, resolve_bind_addresses(host, port));
  std::string cause = "no address";
  for (const SocketAddress& address : addresses) {
    Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int one = 1, zero = 0;
    if (socket.valid()) {
      // A port whose last connections linger can be listened on again; one that is in use cannot.
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
      if (address.storage.ss_family == AF_INET6) {
        ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
      }
    }
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    if (socket.valid() && ::bind(socket.get(), address.get(), address.length) == 0 &&
        ::listen(socket.get(), SOMAXCONN) == 0 &&
        ::getsockname(socket.get(), bound.get(), &bound.length) == 0) {
      // Both families keep the port at the same place.
      int bound_port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
      return ListeningSocket{std::move(socket), bound_port};
    }
    cause = absl::StrCat(to_string(address), ": ", std::strerror(errno));
  }
  return absl::UnavailableError(absl::StrCat("cannot listen on ", cause));
}

}  // namespace gradwire::transport
