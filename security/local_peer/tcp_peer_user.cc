#include "gradwire/security/local_peer/tcp_peer_user.h"

#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <fstream>
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
  bool readable = false;
  // The files of the thread: it may be in another network namespace than the process's first thread.
  for (const char* const path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      readable = true;
      const std::optional<ProcNetTcpLine> parsed = parse_proc_net_tcp_line(line);
      if (parsed.has_value() && parsed->source == source && parsed->destination == destination)
        return parsed->socket;
    }
  }
  if (readable) return absl::NotFoundError("the kernel knows no such socket");
  return absl::UnavailableError("cannot read /proc/net/tcp");
}

// The problem: the peer may try to be taken for a process of another user.
// 1. A peer that closes its socket leaves a socket without a process, for which the kernel says user 0. The
//    lookup may also find a socket that listens at the peer's port. Neither has a user (has_user()).
// 2. A peer may break the connection, and its port may then be used by a process of an allowed user, while
//    the bytes of the first peer are still to be read here. Such a second connection from the same port to
//    this one cannot exist while this socket is connected. So this is checked after the lookup.
absl::StatusOr<uid_t> tcp_peer_user(int socket) {
  GRADWIRE_ASSIGN_OR_RETURN(const TcpEnd own, end_of(socket, ::getsockname));
  GRADWIRE_ASSIGN_OR_RETURN(const TcpEnd peer, end_of(socket, ::getpeername));
  if (!peer.is_loopback() && peer.address != own.address) {
    return absl::PermissionDeniedError(
        absl::StrCat("the connection from ", peer.to_string(), " does not come over the loopback interface"));
  }
  absl::StatusOr<FoundSocket> found = find_tcp_socket_by_netlink(peer, own);
  if (absl::IsUnavailable(found.status())) found = find_tcp_socket_in_proc(peer, own);
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

}  // namespace gradwire::security
