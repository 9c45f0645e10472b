#include "gradwire/store/init/multicast_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::store {
namespace {

// Announcements are far smaller. A longer datagram is truncated and then does not parse.
constexpr std::size_t kMaxDatagram = 4096;

union Address {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

std::string without_zone(const std::string& host) { return host.substr(0, host.find('%')); }

socklen_t to_address(const Endpoint& endpoint, bool v6, Address& address) {
  address = {};
  if (v6) {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_port = htons(static_cast<uint16_t>(endpoint.port));
    inet_pton(AF_INET6, without_zone(endpoint.host).c_str(), &address.v6.sin6_addr);
    return sizeof(address.v6);
  }
  address.v4.sin_family = AF_INET;
  address.v4.sin_port = htons(static_cast<uint16_t>(endpoint.port));
  inet_pton(AF_INET, endpoint.host.c_str(), &address.v4.sin_addr);
  return sizeof(address.v4);
}

std::string host_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.any.sa_family == AF_INET) {
    inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof(text));
    return text;
  }
  inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof(text));
  // A link-local address is usable only together with its interface.
  char interface[IF_NAMESIZE] = {};
  if (IN6_IS_ADDR_LINKLOCAL(&address.v6.sin6_addr) &&
      if_indextoname(address.v6.sin6_scope_id, interface) != nullptr) {
    return absl::StrCat(text, "%", interface);
  }
  return text;
}

std::set<unsigned> usable_interfaces(bool v6) {
  std::set<unsigned> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const bool family = entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == (v6 ? AF_INET6 : AF_INET);
    const bool usable =
        (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & (IFF_MULTICAST | IFF_LOOPBACK)) != 0;
    if (family && usable) found.insert(if_nametoindex(entry->ifa_name));
  }
  freeifaddrs(list);
  found.erase(0);
  return found;
}

template <class T>
bool set_option(int fd, int level, int name, const T& value) {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

}  // namespace

MulticastSocket::MulticastSocket(Descriptor fd, Descriptor wake_fd, const Endpoint& group)
    : fd_(std::move(fd)), wake_fd_(std::move(wake_fd)), group_(group), v6_(is_ipv6(group.host)) {}

MulticastSocket::~MulticastSocket() = default;

absl::StatusOr<std::unique_ptr<MulticastSocket>> MulticastSocket::open(const Endpoint& group) {
  const int family = is_ipv6(group.host) ? AF_INET6 : AF_INET;
  Descriptor fd =
      Descriptor::from([&] { return socket(family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  Descriptor wake_fd;
  if (fd.valid()) wake_fd = Descriptor::from([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_fd.valid()) {
    return system_status(absl::StrCat("cannot create a socket for the multicast group ", to_string(group)),
                         errno);
  }
  std::unique_ptr<MulticastSocket> opened(new MulticastSocket(std::move(fd), std::move(wake_fd), group));
  GRADWIRE_RETURN_IF_ERROR(opened->join());
  return opened;
}

absl::Status MulticastSocket::join() {
  // All members on this machine bind the same address.
  set_option(fd_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  Address address;
  // Bind to the group's address, not to every address, so that only the group's datagrams arrive.
  const socklen_t length = to_address(group_, v6_, address);
  const std::size_t percent = group_.host.find('%');
  const unsigned zone = percent == std::string::npos ? 0 : if_nametoindex(group_.host.c_str() + percent + 1);
  if (v6_) address.v6.sin6_scope_id = zone;
  if (bind(fd_.get(), &address.any, length) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen to the multicast group ", to_string(group_), ": ", std::strerror(errno)));
  }
  int error = ENODEV;
  for (unsigned index : usable_interfaces(v6_)) {
    if (zone != 0 && index != zone) continue;
    bool joined;
    if (v6_) {
      joined = set_option(fd_.get(), IPPROTO_IPV6, IPV6_JOIN_GROUP, ipv6_mreq{address.v6.sin6_addr, index});
    } else {
      joined = set_option(fd_.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP,
                          ip_mreqn{address.v4.sin_addr, in_addr{INADDR_ANY}, static_cast<int>(index)});
    }
    if (joined) {
      interfaces_.push_back(index);
    } else {
      error = errno;
    }
  }
  if (interfaces_.empty()) {
    return errno_status(absl::StrCat("no network interface can join the multicast group ", to_string(group_)),
                        error);
  }
  if (v6_) {
    // Loop: processes on this machine receive the datagrams too. One hop: they do not leave the local
    // network. IP_MULTICAST_ALL 0: only groups that this socket has joined.
    set_option(fd_.get(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
    set_option(fd_.get(), IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 1);
  } else {
    set_option(fd_.get(), IPPROTO_IP, IP_MULTICAST_LOOP, 1);
    set_option(fd_.get(), IPPROTO_IP, IP_MULTICAST_TTL, 1);
    set_option(fd_.get(), IPPROTO_IP, IP_MULTICAST_ALL, 0);
  }
  return absl::OkStatus();
}

void MulticastSocket::send(absl::string_view datagram) {
  Address address;
  const socklen_t length = to_address(group_, v6_, address);
  for (unsigned index : interfaces_) {
    const bool chosen =
        v6_ ? set_option(fd_.get(), IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(index))
            : set_option(fd_.get(), IPPROTO_IP, IP_MULTICAST_IF, ip_mreqn{{}, {}, static_cast<int>(index)});
    if (!chosen) continue;
    if (v6_) address.v6.sin6_scope_id = index;
    // A failure is the same as a lost datagram: the next announcement follows soon.
    // An interface may go down at any time.
    (void)sendto(fd_.get(), datagram.data(), datagram.size(), MSG_DONTWAIT | MSG_NOSIGNAL, &address.any,
                 length);
  }
}

std::optional<MulticastSocket::Datagram> MulticastSocket::receive(absl::Duration timeout) {
  pollfd waited[2] = {{fd_.get(), POLLIN, 0}, {wake_fd_.get(), POLLIN, 0}};
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Seconds(10));
  if (poll(waited, 2, static_cast<int>(absl::ToInt64Milliseconds(bounded))) <= 0) return std::nullopt;
  if (waited[1].revents != 0 || waited[0].revents == 0) return std::nullopt;
  char buffer[kMaxDatagram];
  Address sender = {};
  socklen_t length = sizeof(sender);
  const ssize_t size = recvfrom(fd_.get(), buffer, sizeof(buffer), MSG_DONTWAIT, &sender.any, &length);
  if (size < 0) return std::nullopt;
  return Datagram{std::string(buffer, static_cast<std::size_t>(size)), host_of(sender)};
}

// The eventfd is never read, so this ends all further calls of receive() too.
void MulticastSocket::wake() { eventfd_write(wake_fd_.get(), 1); }

}  // namespace gradwire::store
