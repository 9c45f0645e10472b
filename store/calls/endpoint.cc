#include "gradwire/store/calls/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::store {

bool is_ipv4(absl::string_view host) {
  in_addr address;
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

// The part behind "%" is a zone, which inet_pton() does not know.
bool is_ipv6(absl::string_view host) {
  in6_addr address;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

bool is_loopback(absl::string_view host) {
  return absl::EqualsIgnoreCase(host, "localhost") || host == "::1" ||
         (is_ipv4(host) && absl::StartsWith(host, "127."));
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = absl::StrContains(endpoint.host, ':');
  return absl::StrCat(brackets ? "[" : "", endpoint.host, brackets ? "]:" : ":", endpoint.port);
}

absl::Status check_endpoint(const Endpoint& endpoint, int lowest_port) {
  // 255 is the maximum length of a name in DNS. A host with a colon must be an IPv6 address, since no name
  // has one.
  bool plausible = !endpoint.host.empty() && endpoint.host.size() <= 255;
  if (absl::StrContains(endpoint.host, ':')) plausible = plausible && is_ipv6(endpoint.host);
  for (char c : endpoint.host)
    plausible = plausible && c > ' ' && c < 127 && c != '/' && c != '[' && c != ']';
  if (!plausible) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(endpoint.host.substr(0, 255)),
                                                   "\" is not a host name or address"));
  }
  if (endpoint.port < lowest_port || endpoint.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", endpoint.port, " of host ", endpoint.host,
                                                   " is not in ", lowest_port, "..65535"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text) {
  const std::size_t colon = text.rfind(':');
  Endpoint endpoint;
  bool valid = colon != absl::string_view::npos;
  if (valid) {
    absl::string_view host = text.substr(0, colon);
    const absl::string_view port = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
      valid = is_ipv6(host);
    } else {
      valid = !absl::StrContains(host, ':');
    }
    // SimpleAtoi would accept signs and spaces.
    valid = valid && !port.empty() && port.find_first_not_of("0123456789") == absl::string_view::npos &&
            absl::SimpleAtoi(port, &endpoint.port);
    endpoint.host = std::string(host);
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(text.substr(0, 300)),
                                                   "\" is not host:port ([address]:port for IPv6)"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_endpoint(endpoint, 0));
  return endpoint;
}

namespace {

// False if `b` is null, as an interface without an address has, or of another family.
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

// Whether an address always is this machine, without comparing it with the interfaces. All of 127.0.0.0/8 is
// this machine, but only one of its addresses belongs to an interface (Debian maps the host's own name to
// 127.0.1.1). The unspecified addresses 0.0.0.0 and :: also reach this machine.
bool is_always_local(const sockaddr* address) {
  if (address->sa_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  }
  const uint32_t value = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
  return value == INADDR_ANY || value >> 24 == IN_LOOPBACKNET;
}

}  // namespace

absl::StatusOr<bool> is_this_machine(const std::string& host) {
  if (is_loopback(host)) return true;
  // A name may have several addresses; one of this machine is enough.
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<transport::SocketAddress> wanted,
                            transport::resolve_bind_addresses(host, 0));
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return system_status("cannot list the network's interfaces", errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(list, &freeifaddrs);
  return std::any_of(wanted.begin(), wanted.end(), [list](const transport::SocketAddress& each) {
    bool is_local = is_always_local(each.get());
    for (const ifaddrs* own = list; own != nullptr && !is_local; own = own->ifa_next) {
      is_local = same_address(each.get(), own->ifa_addr);
    }
    return is_local;
  });
}

}  // namespace gradwire::store
