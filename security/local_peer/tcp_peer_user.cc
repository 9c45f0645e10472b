#include "gradwire/security/local_peer/tcp_peer_user.h"

#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/local_peer/inet_diag.h"
#include "gradwire/security/local_peer/proc_net_tcp.h"

namespace gradwire::security {
namespace {

constexpr uint32_t kSequence = 1;

using GetName = int (*)(int, sockaddr*, socklen_t*);

absl::StatusOr<TcpEnd> end_of(int socket, GetName get_name) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (get_name(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return errno_status("cannot get the address of a connection", errno);
  const std::optional<TcpEnd> end = tcp_end(address);
  if (!end.has_value()) return absl::UnavailableError("the connection is not a TCP connection");
  return *end;
}

bool is_connected(int socket) {
  tcp_info info = {};
  socklen_t length = sizeof(info);
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return info.tcpi_state == FoundSocket::kEstablished || info.tcpi_state == FoundSocket::kCloseWait;
}

// Sends one request and returns the answer. The kernel has answered when sendto() returns.
absl::StatusOr<std::string> ask_kernel(const std::string& request) {
  const Descriptor netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink.valid()) return errno_status("cannot open a netlink socket", errno);
  sockaddr_nl kernel = {};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(netlink.get(), request.data(), request.size(), MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&kernel),
               sizeof(kernel)) != static_cast<ssize_t>(request.size())) {
    return errno_status("cannot ask the kernel about a socket", errno);
  }
  std::string answer(kMaxInetDiagAnswer, '\0');
  sockaddr_nl sender = {};
  socklen_t length = sizeof(sender);
  const ssize_t got = ::recvfrom(netlink.get(), answer.data(), answer.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&sender), &length);
  if (got < 0) return errno_status("the kernel does not answer a request about a socket", errno);
  // Another process could have sent it.
  if (sender.nl_pid != 0) return absl::UnavailableError("the answer about a socket is not from the kernel");
  answer.resize(static_cast<std::size_t>(got));
  return answer;
}

absl::StatusOr<FoundSocket> look_up(const TcpEnd& source, const TcpEnd& destination) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answer,
                            ask_kernel(inet_diag_request(source, destination, kSequence)));
  return parse_inet_diag_answer(answer, source, destination, kSequence);
}

struct Ends {
  TcpEnd own;
  TcpEnd peer;
};

absl::StatusOr<Ends> ends_on_this_host(int socket) {
  GRADWIRE_ASSIGN_OR_RETURN(const TcpEnd own, end_of(socket, ::getsockname));
  GRADWIRE_ASSIGN_OR_RETURN(const TcpEnd peer, end_of(socket, ::getpeername));
  if (peer.is_loopback() || peer.address == own.address) return Ends{own, peer};
  return absl::PermissionDeniedError(
      absl::StrCat("the connection from ", peer.to_string(), " does not come over the loopback interface"));
}

absl::StatusOr<FoundSocket> find_socket(const TcpEnd& source, const TcpEnd& destination) {
  absl::StatusOr<FoundSocket> found = find_tcp_socket_by_netlink(source, destination);
  if (absl::IsUnavailable(found.status())) found = find_tcp_socket_in_proc(source, destination);
  return found;
}

// The files of the thread: it may be in another network namespace than the process's first thread. Calls
// `use` for each socket, until it returns true. Returns whether a file could be read.
bool read_proc(const std::function<bool(const ProcNetTcpLine&)>& use) {
  bool readable = false;
  for (const char* const path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      readable = true;
      const std::optional<ProcNetTcpLine> parsed = parse_proc_net_tcp_line(line);
      if (parsed.has_value() && use(*parsed)) return true;
    }
  }
  return readable;
}

absl::StatusOr<FoundSocket> found_in_proc(const std::optional<FoundSocket>& found, bool readable) {
  if (found.has_value()) return *found;
  if (readable) return absl::NotFoundError("the kernel knows no such socket");
  return absl::UnavailableError("cannot read /proc/net/tcp");
}

// The wildcard of IPv4 or IPv6.
bool is_any(const TcpEnd& end) {
  return std::all_of(end.address.begin() + (end.is_v4() ? 12 : 0), end.address.end(),
                     [](uint8_t byte) { return byte == 0; });
}

}  // namespace

// "NotFound" may also mean that the kernel lacks this kind of request. The socket from `destination` to
// `source` is this process's own and therefore exists. So the request works if it finds that one.
absl::StatusOr<FoundSocket> find_tcp_socket_by_netlink(const TcpEnd& source, const TcpEnd& destination) {
  absl::StatusOr<FoundSocket> found = look_up(source, destination);
  if (found.ok()) return found;
  if (look_up(destination, source).ok()) return absl::NotFoundError("the kernel knows no such socket");
  return absl::UnavailableError(found.status().message());
}

// A connection between IPv4 addresses may be in either file: the socket may be an IPv6 socket.
absl::StatusOr<FoundSocket> find_tcp_socket_in_proc(const TcpEnd& source, const TcpEnd& destination) {
  std::optional<FoundSocket> found;
  const bool readable = read_proc([&](const ProcNetTcpLine& line) {
    if (line.source == source && line.destination == destination) found = line.socket;
    return found.has_value();
  });
  return found_in_proc(found, readable);
}

absl::StatusOr<FoundSocket> find_tcp_listener_by_netlink(const TcpEnd& end) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answer, ask_kernel(inet_diag_listener_request(end, kSequence)));
  return parse_inet_diag_listener(answer, end, kSequence);
}

// As in the kernel, a socket that listens at the address itself gets the connection, and no other user can
// listen there then.
absl::StatusOr<FoundSocket> find_tcp_listener_in_proc(const TcpEnd& end) {
  std::optional<FoundSocket> found;
  const bool readable = read_proc([&](const ProcNetTcpLine& line) {
    if (line.socket.state != FoundSocket::kListen || line.source.port != end.port) return false;
    const bool exact = line.source == end;
    if (exact || (is_any(line.source) && !found.has_value())) found = line.socket;
    return exact;
  });
  return found_in_proc(found, readable);
}

// The problem: the peer may try to be taken for a process of another user.
// 1. A peer that closes its socket leaves a socket without a process, for which the kernel says user 0. The
//    lookup may also find a socket that listens at the peer's port. Neither has a user (has_user()).
// 2. A peer may break the connection, and its port may then be used by a process of an allowed user, while
//    the bytes of the first peer are still to be read here. Such a second connection from the same port to
//    this one cannot exist while this socket is connected. So this is checked after the lookup.
absl::StatusOr<uid_t> tcp_peer_user(int socket) {
  GRADWIRE_ASSIGN_OR_RETURN(const auto ends, ends_on_this_host(socket));
  const auto& [own, peer] = ends;
  const absl::StatusOr<FoundSocket> found = find_socket(peer, own);
  if (absl::IsNotFound(found.status())) {
    return absl::PermissionDeniedError(absl::StrCat("the process at ", peer.to_string(),
                                                    " is not in the network namespace of this process"));
  }
  if (!found.ok()) return found.status();
  if (!found->has_user() || !is_connected(socket)) {
    return absl::PermissionDeniedError(
        absl::StrCat("the process at ", peer.to_string(), " has closed its connection"));
  }
  return found->user;
}

// The problem: until the server accepts the connection, its end belongs to no process. Then the socket that
// listens has the user. But it must be the one at which this connection waits:
// 1. Its end waits to be accepted.
// 2. A socket listens at the address. It has a user.
// 3. Its end still waits. If the socket that had it were closed, its end would be gone. So nobody else has
//    begun to listen at the address in between.
absl::StatusOr<uid_t> tcp_server_user(int socket) {
  GRADWIRE_ASSIGN_OR_RETURN(const Ends ends, ends_on_this_host(socket));
  const absl::Status gone = absl::UnavailableError(
      absl::StrCat("the process at ", ends.peer.to_string(), " has closed the connection"));
  absl::StatusOr<FoundSocket> found = find_socket(ends.peer, ends.own);
  if (found.ok() && found->awaits_accept()) {
    absl::StatusOr<FoundSocket> listener = find_tcp_listener_by_netlink(ends.peer);
    if (!listener.ok()) listener = find_tcp_listener_in_proc(ends.peer);
    found = find_socket(ends.peer, ends.own);
    if (found.ok() && found->awaits_accept()) {
      if (!listener.ok()) return gone;
      return listener->inode != 0 && is_connected(socket) ? absl::StatusOr<uid_t>(listener->user) : gone;
    }
  }
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  if (!found.ok() || !found->has_user() || !is_connected(socket)) return gone;
  return found->user;
}

}  // namespace gradwire::security
