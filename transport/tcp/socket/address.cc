#include "gradwire/transport/tcp/socket/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gradwire/base/duty.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/credentials.h"

namespace gradwire::transport {
namespace {

// Separates a loopback address from its network.
constexpr char kNetworkMark = '@';
constexpr std::size_t kMaxNetwork = 128;

// The network of "host:port@network", which is removed from `text`; empty if it has none.
absl::StatusOr<std::string> take_network(absl::string_view& text) {
  const std::size_t mark = text.find(kNetworkMark);
  if (mark == absl::string_view::npos) return std::string();
  const absl::string_view network = text.substr(mark + 1);
  const bool good = !network.empty() && network.size() <= kMaxNetwork &&
                    std::all_of(network.begin(), network.end(),
                                [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-'; });
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed address: got \"", absl::CHexEscape(text), "\", expected host:port@network"));
  }
  text = text.substr(0, mark);
  return std::string(network);
}

bool is_other_network(absl::string_view network) {
  return !network.empty() && !network_id().empty() && network != network_id();
}

// An IPv6 address must be in brackets: without them the last group of digits could be taken for the port.
absl::StatusOr<HostAddress> split_host_port(absl::string_view text) {
  auto invalid = [text] {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed address: got \"", text, "\", expected host:port"));
  };
  absl::string_view host, port_text;
  if (absl::ConsumePrefix(&text, "[")) {
    std::size_t end = text.find("]:");
    if (end == absl::string_view::npos) return invalid();
    host = text.substr(0, end);
    port_text = text.substr(end + 2);
  } else {
    std::size_t colon = text.rfind(':');
    if (colon == absl::string_view::npos || text.find(':') != colon) return invalid();
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
  }
  int port = 0;
  if (host.empty() || host.size() > 255 || !absl::SimpleAtoi(port_text, &port) || port < 1 || port > 65535) {
    return invalid();
  }
  return HostAddress{std::string(host), port, std::nullopt};
}

// A host name is looked up in files and by servers of other machines, which may take long. A numeric host is
// not looked up.
absl::StatusOr<std::vector<SocketAddress>> look_up(const char* host, int port, int flags) {
  assert((flags & AI_NUMERICHOST) != 0 || !on_duty());
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host, std::to_string(port).c_str(), &hints, &found);
  if (error == EAI_SYSTEM && is_shortage(errno))
    return system_status(absl::StrCat("cannot look up the host \"", host, "\""), errno);
  const auto failed = [host](const char* cause) {
    return absl::UnavailableError(absl::StrCat("cannot look up the host \"", host, "\": ", cause));
  };
  if (error != 0) return failed(::gai_strerror(error));
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (info->ai_family != AF_INET && info->ai_family != AF_INET6) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, info->ai_addr, info->ai_addrlen);
    address.length = info->ai_addrlen;
  }
  if (addresses.empty()) return failed("it has no IPv4 or IPv6 address");
  return addresses;
}

void set_port(SocketAddress& address, int port) {
  if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

SocketAddress address4(in_addr_t host, int port) {
  SocketAddress address;
  auto* in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  in4->sin_family = AF_INET;
  in4->sin_addr.s_addr = htonl(host);
  in4->sin_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof(sockaddr_in);
  return address;
}

SocketAddress address6(const in6_addr& host, int port) {
  SocketAddress address;
  auto* in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  in6->sin6_family = AF_INET6;
  in6->sin6_addr = host;
  in6->sin6_port = htons(static_cast<uint16_t>(port));
  address.length = sizeof(sockaddr_in6);
  return address;
}

std::string host_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&in6)) {
      ::inet_ntop(AF_INET, in6.s6_addr + 12, text, sizeof(text));
    } else {
      ::inet_ntop(AF_INET6, &in6, text, sizeof(text));
    }
  }
  return text;
}

bool is_usable_by_other_hosts(const sockaddr* address) {
  if (address == nullptr) return false;
  if (address->sa_family == AF_INET) {
    uint32_t value = ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr);
    // Not the unspecified address, loopback (127/8) or link-local (169.254/16).
    return value != 0 && (value >> 24) != 127 && (value >> 16) != 0xa9fe;
  }
  if (address->sa_family == AF_INET6) {
    const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return !IN6_IS_ADDR_UNSPECIFIED(&in6) && !IN6_IS_ADDR_LOOPBACK(&in6) && !IN6_IS_ADDR_LINKLOCAL(&in6);
  }
  return false;
}

// Returns the addresses of interfaces that are up, IPv4 before IPv6.
std::vector<std::string> interface_hosts() {
  std::vector<std::string> hosts;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return hosts;
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if ((entry->ifa_flags & IFF_UP) == 0 || entry->ifa_addr == nullptr) continue;
      if (entry->ifa_addr->sa_family != family || !is_usable_by_other_hosts(entry->ifa_addr)) continue;
      hosts.push_back(host_of(entry->ifa_addr));
    }
  }
  return hosts;
}

std::optional<std::string> host_of_own_name(const std::vector<std::string>& interfaces) {
  auto addresses = look_up_host(host_name());
  if (!addresses.ok()) return std::nullopt;
  for (const SocketAddress& address : *addresses) {
    std::string host = host_of(address.get());
    if (std::find(interfaces.begin(), interfaces.end(), host) != interfaces.end()) return host;
  }
  return std::nullopt;
}

// connect() on a datagram socket sends nothing. It only makes the kernel choose the source address.
// The targets are addresses that are reserved for documentation. They belong to no host, so only the
// default route leads to them. Port 9 is arbitrary.
std::optional<std::string> host_of_default_route() {
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    auto target = look_up(elsewhere, 9, AI_NUMERICHOST);
    if (!target.ok() || target->empty()) continue;
    Descriptor socket = Descriptor::from(
        [&] { return ::socket(target->front().storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0); });
    if (!socket.valid() || ::connect(socket.get(), target->front().get(), target->front().length) != 0)
      continue;
    SocketAddress own;
    own.length = sizeof(own.storage);
    if (::getsockname(socket.get(), own.get(), &own.length) != 0) continue;
    if (is_usable_by_other_hosts(own.get())) return host_of(own.get());
  }
  return std::nullopt;
}

}  // namespace

std::string to_string(const SocketAddress& address) {
  uint16_t port = address.storage.ss_family == AF_INET6
                      ? reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port
                      : reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port;
  return join_host_port(host_of(address.get()), ntohs(port));
}

std::string host_to_string(const SocketAddress& address) { return host_of(address.get()); }

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24 == 127;
  }
  if (address.storage.ss_family != AF_INET6) return false;
  const in6_addr& in6 = reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&in6) || (IN6_IS_ADDR_V4MAPPED(&in6) && in6.s6_addr[12] == 127);
}

std::string join_host_port(absl::string_view host, int port) {
  if (host.find(':') != absl::string_view::npos) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

std::string in_network(absl::string_view address, absl::string_view network) {
  if (network.empty()) return std::string(address);
  return absl::StrCat(address, std::string(1, kNetworkMark), network);
}

std::string without_network(absl::string_view address) {
  std::vector<absl::string_view> parts = absl::StrSplit(address, ',');
  for (absl::string_view& part : parts) part = part.substr(0, part.find(kNetworkMark));
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<std::vector<HostAddress>> parse_addresses(absl::string_view address) {
  std::vector<HostAddress> all;
  absl::Status elsewhere;
  for (absl::string_view part : absl::StrSplit(address, ',')) {
    part = absl::StripAsciiWhitespace(part);
    GRADWIRE_ASSIGN_OR_RETURN(const std::string network, take_network(part));
    GRADWIRE_ASSIGN_OR_RETURN(HostAddress each, split_host_port(part));
    if (is_other_network(network)) {
      elsewhere = absl::FailedPreconditionError(absl::StrCat(
          "cannot connect to ", part,
          ": that process runs on another host or in another container, and listens only on the loopback "
          "interface there, because it has no credentials; ",
          security::kHowToSecure));
      continue;
    }
    const auto numeric = look_up(each.host.c_str(), each.port, AI_NUMERICHOST);
    if (numeric.ok()) each.numeric = numeric->front();
    all.push_back(std::move(each));
  }
  if (all.empty()) return elsewhere;
  return all;
}

absl::StatusOr<std::vector<SocketAddress>> look_up_host(const std::string& host) {
  return look_up(host.c_str(), 0, 0);
}

absl::StatusOr<std::vector<SocketAddress>> resolve(
    const std::vector<HostAddress>& addresses,
    absl::FunctionRef<absl::StatusOr<std::vector<SocketAddress>>(const std::string& host)> look_up) {
  std::vector<SocketAddress> all;
  absl::Status unresolved;
  for (const HostAddress& each : addresses) {
    if (each.numeric.has_value()) {
      all.push_back(*each.numeric);
      continue;
    }
    absl::StatusOr<std::vector<SocketAddress>> found = look_up(each.host);
    if (!found.ok()) {
      unresolved = found.status();
      continue;
    }
    for (SocketAddress& address : *found) set_port(address, each.port);
    all.insert(all.end(), found->begin(), found->end());
  }
  if (all.empty()) return unresolved;
  return all;
}

absl::StatusOr<std::vector<SocketAddress>> resolve_addresses(absl::string_view address) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<HostAddress> parsed, parse_addresses(address));
  return resolve(parsed, look_up_host);
}

absl::StatusOr<std::vector<SocketAddress>> resolve_bind_addresses(const std::string& host, int port) {
  if (!host.empty()) return look_up(host.c_str(), port, AI_PASSIVE);
  // An IPv6 socket accepts IPv4 connections too. IPv4 is tried if the kernel has no IPv6.
  return std::vector<SocketAddress>{address6(in6addr_any, port), address4(INADDR_ANY, port)};
}

std::vector<SocketAddress> loopback_addresses(int port) {
  return {address4(INADDR_LOOPBACK, port), address6(in6addr_loopback, port)};
}

// Tries the most specific source first. The host's own name comes before the default route: in a cluster it
// usually resolves to the interface that the hosts should use.
std::string advertised_host(const std::string& configured) {
  if (!configured.empty()) return configured;
  if (const char* from_environment = std::getenv("GRADWIRE_HOST_ADDRESS");
      from_environment != nullptr && *from_environment != '\0')
    return from_environment;
  std::vector<std::string> interfaces = interface_hosts();
  if (interfaces.empty()) return "127.0.0.1";
  if (auto host = host_of_own_name(interfaces)) return *host;
  if (auto host = host_of_default_route()) return *host;
  return interfaces.front();
}

}  // namespace gradwire::transport
