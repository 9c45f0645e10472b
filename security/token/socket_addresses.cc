#include "gradwire/security/token/socket_addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"

namespace gradwire::security {
namespace {

std::string canonical(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
    ::inet_ntop(AF_INET, in6.sin6_addr.s6_addr + 12, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(in6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(in6.sin6_port));
}

std::string address_by(int (*call)(int, sockaddr*, socklen_t*), int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  return call(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? canonical(address) : "";
}

int own_name(int socket, sockaddr* address, socklen_t* size) { return ::getsockname(socket, address, size); }
int peer_name(int socket, sockaddr* address, socklen_t* size) { return ::getpeername(socket, address, size); }

}  // namespace

SocketAddresses socket_addresses(int socket) {
  return {address_by(own_name, socket), address_by(peer_name, socket)};
}

}  // namespace gradwire::security
