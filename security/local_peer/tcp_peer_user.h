#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/local_peer/tcp_end.h"

namespace gradwire::security {

// The messages by which the kernel is asked for the owner of one TCP socket (sock_diag(7), an exact lookup).
// Pure.

// More than any answer has that is used.
inline constexpr std::size_t kMaxInetDiagAnswer = 4096;

// The request for the socket from `source` to `destination`. `sequence` comes back in the answer.
std::string inet_diag_request(const TcpEnd& source, const TcpEnd& destination, uint32_t sequence);

// The request for the socket that listens where `end` is the address of a server.
std::string inet_diag_listener_request(const TcpEnd& end, uint32_t sequence);
// Returns that socket. Errors as below; InvalidArgument also for a socket that does not listen at the port.
absl::StatusOr<FoundSocket> parse_inet_diag_listener(absl::string_view answer, const TcpEnd& end,
                                                     uint32_t sequence);

// Returns the socket that an answer describes. NotFound: the kernel knows no such socket, or does not support
// the request; it reports both in the same way. PermissionDenied and Unavailable: the kernel's error.
// InvalidArgument: the answer is malformed, or is about another socket, for example one that listens at the
// port.
absl::StatusOr<FoundSocket> parse_inet_diag_answer(absl::string_view answer, const TcpEnd& source,
                                                   const TcpEnd& destination, uint32_t sequence);

// A line of /proc/net/tcp or /proc/net/tcp6.
struct ProcNetTcpLine {
  TcpEnd source;
  TcpEnd destination;
  FoundSocket socket;
};

// nullopt for the heading and for a line that is malformed. Pure.
std::optional<ProcNetTcpLine> parse_proc_net_tcp_line(absl::string_view line);

// Returns the user of the process at the other end of `socket`, a connected TCP socket, if that process is on
// this host. The kernel says so: it knows the socket of the peer. Precisely it is the user who made the
// socket.
//
// The peer is on this host if the connection goes through the loopback interface: the address of the peer is
// a loopback address, or the same as that of this end. A program that forwards connections, such as ssh -L,
// counts as the peer.
//
// PermissionDenied: the peer is on another host or in another network namespace, or has closed its socket.
// Unavailable: the socket is not connected any more, or the kernel does not answer such questions.
// ResourceExhausted: this process has no descriptor or memory left to ask (base/process/shortage.h).
//
// Costs about 10 us (measured on an EPYC), with any number of connections. If the system does not permit
// netlink sockets it reads /proc/net/tcp, which took 0.2 ms, and 20 ms on a host with 10,000 sockets. So it
// is for the beginning of a connection. Thread-safe.
absl::StatusOr<uid_t> tcp_peer_user(int socket);

// As tcp_peer_user(), for a socket that has connected: the user of the server, also before it has accepted
// the connection. Unavailable: the server has closed its end, or could not be found; the caller may connect
// again.
absl::StatusOr<uid_t> tcp_server_user(int socket);

// The two ways by which tcp_peer_user() finds the socket from `source` to `destination`. NotFound: this
// network namespace has no such socket. Unavailable: this way does not work on this host.
absl::StatusOr<FoundSocket> find_tcp_socket_by_netlink(const TcpEnd& source, const TcpEnd& destination);
absl::StatusOr<FoundSocket> find_tcp_socket_in_proc(const TcpEnd& source, const TcpEnd& destination);
// The same for the socket that listens where `end` is the address of a server.
absl::StatusOr<FoundSocket> find_tcp_listener_by_netlink(const TcpEnd& end);
absl::StatusOr<FoundSocket> find_tcp_listener_in_proc(const TcpEnd& end);

}  // namespace gradwire::security
