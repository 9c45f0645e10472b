#include "gradwire/store/tcp/this_machine.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/transport/tcp/address.h"

namespace gradwire::store {
namespace {

bool same_address(const sockaddr* a, const sockaddr* b) {
  if (b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  }
  return a->sa_family == AF_INET6 &&
         std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

// All of 127.0.0.0/8 is this machine, and one address of it alone is an interface's: Debian gives a host's own name
// 127.0.1.1. 0.0.0.0 and :: lead here too.
bool is_always_here(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  const uint32_t value = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return value == INADDR_ANY || value >> 24 == IN_LOOPBACKNET;
}

}  // namespace

absl::StatusOr<bool> is_this_machine(const std::string& host) {
  if (is_loopback(host)) return true;
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<transport::SocketAddress> wanted,
                            transport::resolve_bind_addresses(host, 0));
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot list the network's interfaces: ", std::generic_category().message(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(list, &freeifaddrs);
  return std::any_of(wanted.begin(), wanted.end(), [list](const transport::SocketAddress& each) {
    bool here = is_always_here(each.get());
    for (const ifaddrs* own = list; own != nullptr && !here; own = own->ifa_next) {
      here = same_address(each.get(), own->ifa_addr);
    }
    return here;
  });
}

}  // namespace gradwire::store
