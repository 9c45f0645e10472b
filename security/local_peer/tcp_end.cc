#include "gradwire/security/local_peer/tcp_end.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace gradwire::security {
namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::array<uint8_t, 16> kLoopback6 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

}  // namespace

bool TcpEnd::is_v4() const { return std::equal(kMapped.begin(), kMapped.end(), address.begin()); }

bool TcpEnd::is_loopback() const { return is_v4() ? address[12] == 127 : address == kLoopback6; }

std::string TcpEnd::to_string() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (is_v4()) {
    ::inet_ntop(AF_INET, address.data() + kMapped.size(), text, sizeof(text));
    return absl::StrCat(text, ":", port);
  }
  ::inet_ntop(AF_INET6, address.data(), text, sizeof(text));
  return absl::StrCat("[", text, "]:", port);
}

std::optional<TcpEnd> tcp_end(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof(v4));
    return tcp_end_v4(reinterpret_cast<const uint8_t*>(&v4.sin_addr), ntohs(v4.sin_port));
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6;
  std::memcpy(&v6, &address, sizeof(v6));
  TcpEnd end;
  std::memcpy(end.address.data(), &v6.sin6_addr, end.address.size());
  end.port = ntohs(v6.sin6_port);
  return end;
}

TcpEnd tcp_end_v4(const uint8_t* address, uint16_t port) {
  TcpEnd end;
  std::copy(kMapped.begin(), kMapped.end(), end.address.begin());
  std::copy(address, address + 4, end.address.begin() + kMapped.size());
  end.port = port;
  return end;
}

bool FoundSocket::has_user() const {
  return inode != 0 &&
         (state == kEstablished || state == kFinWait1 || state == kFinWait2 || state == kCloseWait);
}

// A socket that its process has closed has another state.
bool FoundSocket::awaits_accept() const {
  return inode == 0 && (state == kEstablished || state == kSynReceived);
}

}  // namespace gradwire::security
