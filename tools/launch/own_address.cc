#include "tools/launch/own_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "store/endpoint.h"
#include "tools/launch/fd.h"

namespace gradwire::tools {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("cannot find host ", host, ": ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

absl::StatusOr<bool> is_this_machine(const std::string& host) {
  if (store::is_loopback(host)) return true;
  GRADWIRE_ASSIGN_OR_RETURN(const AddressList wanted, resolve(host, 0));
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return errno_status("cannot list the network's interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(list, &freeifaddrs);
  for (const addrinfo* each = wanted.get(); each != nullptr; each = each->ai_next) {
    // All of 127.0.0.0/8 is this machine, and one address of it alone is an interface's: Debian gives a host's own name
    // 127.0.1.1.
    if (each->ai_family == AF_INET &&
        ntohl(reinterpret_cast<const sockaddr_in*>(each->ai_addr)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET) {
      return true;
    }
    for (const ifaddrs* own = interfaces.get(); own != nullptr; own = own->ifa_next) {
      if (same_address(each->ai_addr, own->ifa_addr)) return true;
    }
  }
  return false;
}

absl::StatusOr<std::string> address_towards(const std::string& host, int port) {
  if (store::is_loopback(host)) return "127.0.0.1";
  GRADWIRE_ASSIGN_OR_RETURN(const AddressList targets, resolve(host, port));
  int error = 0;
  for (const addrinfo* each = targets.get(); each != nullptr; each = each->ai_next) {
    // A datagram socket's connect sends nothing: it only chooses the way.
    const Fd socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    char text[NI_MAXHOST] = "";
    if (socket.valid() && connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
    error = errno;
  }
  return errno_status(
      absl::StrCat("no way to ", host, " (--local_addr says at which address others reach this machine)"),
      error);
}

}  // namespace gradwire::tools
