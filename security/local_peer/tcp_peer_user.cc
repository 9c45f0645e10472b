#include "gradwire/security/local_peer/tcp_peer_user.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/process/shortage.h"

namespace gradwire::security {
namespace {

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 body;
};
static_assert(sizeof(Request) == NLMSG_HDRLEN + sizeof(inet_diag_req_v2));

// An address in the form of inet_diag_sockid: an IPv4 address is in the first 4 bytes.
void put_address(const TcpEnd& end, bool v4, __be32 (&to)[4]) {
  std::memset(to, 0, sizeof(to));
  if (v4) {
    std::memcpy(to, end.address.data() + 12, 4);
  } else {
    std::memcpy(to, end.address.data(), 16);
  }
}

TcpEnd end_of(uint8_t family, const __be32 (&address)[4], __be16 port) {
  if (family == AF_INET) return tcp_end_v4(reinterpret_cast<const uint8_t*>(address), ntohs(port));
  TcpEnd end;
  std::memcpy(end.address.data(), address, end.address.size());
  end.port = ntohs(port);
  return end;
}

template <class T>
bool read_at(absl::string_view bytes, std::size_t offset, T& value) {
  if (bytes.size() < offset || bytes.size() - offset < sizeof(T)) return false;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return true;
}

absl::Status malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed answer of the kernel about a socket: ", what));
}

absl::StatusOr<inet_diag_msg> parse_message(absl::string_view answer, uint32_t sequence) {
  nlmsghdr header;
  if (!read_at(answer, 0, header) || header.nlmsg_len < NLMSG_HDRLEN || header.nlmsg_len > answer.size())
    return malformed("wrong length");
  if (header.nlmsg_seq != sequence) return malformed("it belongs to another request");
  answer = answer.substr(0, header.nlmsg_len);
  if (header.nlmsg_type == NLMSG_ERROR) {
    int32_t error;
    if (!read_at(answer, NLMSG_HDRLEN, error) || error >= 0) return malformed("an error without a number");
    if (error == -ENOENT) return absl::NotFoundError("the kernel knows no such socket");
    if (error == -EPERM || error == -EACCES)
      return absl::PermissionDeniedError("the kernel does not allow requests about sockets");
    return errno_status("the kernel refuses a request about a socket", -error);
  }
  inet_diag_msg message;
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || !read_at(answer, NLMSG_HDRLEN, message))
    return malformed("not a description of a socket");
  if (message.idiag_family != AF_INET && message.idiag_family != AF_INET6) return malformed("unknown family");
  return message;
}

}  // namespace

std::string inet_diag_request(const TcpEnd& source, const TcpEnd& destination, uint32_t sequence) {
  const bool v4 = source.is_v4();
  Request request = {};
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_seq = sequence;
  request.body.sdiag_family = v4 ? AF_INET : AF_INET6;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~uint32_t{0};
  request.body.id.idiag_sport = htons(source.port);
  request.body.id.idiag_dport = htons(destination.port);
  put_address(source, v4, request.body.id.idiag_src);
  put_address(destination, v4, request.body.id.idiag_dst);
  std::fill(std::begin(request.body.id.idiag_cookie), std::end(request.body.id.idiag_cookie),
            INET_DIAG_NOCOOKIE);
  return std::string(reinterpret_cast<const char*>(&request), sizeof(request));
}

// The lookup of the kernel goes on to sockets that listen when it finds no connection. So the addresses of
// the answer are compared with those of the request.
absl::StatusOr<FoundSocket> parse_inet_diag_answer(absl::string_view answer, const TcpEnd& source,
                                                   const TcpEnd& destination, uint32_t sequence) {
  GRADWIRE_ASSIGN_OR_RETURN(const inet_diag_msg message, parse_message(answer, sequence));
  if (end_of(message.idiag_family, message.id.idiag_src, message.id.idiag_sport) != source ||
      end_of(message.idiag_family, message.id.idiag_dst, message.id.idiag_dport) != destination) {
    return malformed("it is about another socket");
  }
  return FoundSocket{message.idiag_uid, message.idiag_inode, message.idiag_state};
}

// No connection has the port 0, so the lookup of the kernel goes on to the sockets that listen.
std::string inet_diag_listener_request(const TcpEnd& end, uint32_t sequence) {
  TcpEnd nobody = end;
  nobody.port = 0;
  return inet_diag_request(end, nobody, sequence);
}

// The address of the answer may be the wildcard.
absl::StatusOr<FoundSocket> parse_inet_diag_listener(absl::string_view answer, const TcpEnd& end,
                                                     uint32_t sequence) {
  GRADWIRE_ASSIGN_OR_RETURN(const inet_diag_msg message, parse_message(answer, sequence));
  if (message.idiag_state != FoundSocket::kListen || ntohs(message.id.idiag_sport) != end.port)
    return malformed("it is about another socket");
  return FoundSocket{message.idiag_uid, message.idiag_inode, message.idiag_state};
}

namespace {

// The columns that are used, and the number that a line has at least.
constexpr std::size_t kSource = 1;
constexpr std::size_t kDestination = 2;
constexpr std::size_t kState = 3;
constexpr std::size_t kUser = 7;
constexpr std::size_t kInode = 9;

// The digits are checked here, because SimpleHexAtoi() accepts signs, blanks and "0x".
bool parse_hex(absl::string_view text, std::size_t digits, uint32_t& value) {
  if (text.size() != digits) return false;
  value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return false;
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return true;
}

// An end is "0100007F:1F90": the address as 32-bit words in the byte order of the machine, and the port.
bool parse_end(absl::string_view text, TcpEnd& end) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  uint32_t port;
  if (parts.size() != 2 || !parse_hex(parts[1], 4, port)) return false;
  const std::size_t words = parts[0].size() / 8;
  if (parts[0].size() != words * 8 || (words != 1 && words != 4)) return false;
  uint8_t bytes[16];
  for (std::size_t i = 0; i < words; ++i) {
    uint32_t word;
    if (!parse_hex(parts[0].substr(8 * i, 8), 8, word)) return false;
    std::memcpy(bytes + 4 * i, &word, sizeof(word));
  }
  if (words == 1) {
    end = tcp_end_v4(bytes, static_cast<uint16_t>(port));
  } else {
    std::memcpy(end.address.data(), bytes, sizeof(bytes));
    end.port = static_cast<uint16_t>(port);
  }
  return true;
}

}  // namespace

std::optional<ProcNetTcpLine> parse_proc_net_tcp_line(absl::string_view line) {
  const std::vector<absl::string_view> columns = absl::StrSplit(line, ' ', absl::SkipEmpty());
  ProcNetTcpLine parsed;
  uint32_t state;
  if (columns.size() <= kInode || !parse_end(columns[kSource], parsed.source) ||
      !parse_end(columns[kDestination], parsed.destination) || !parse_hex(columns[kState], 2, state) ||
      !absl::SimpleAtoi(columns[kUser], &parsed.socket.user) ||
      !absl::SimpleAtoi(columns[kInode], &parsed.socket.inode)) {
    return std::nullopt;
  }
  parsed.socket.state = static_cast<uint8_t>(state);
  return parsed;
}

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
  const Descriptor netlink =
      Descriptor::from([&] { return ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG); });
  if (!netlink.valid()) return system_status("cannot open a netlink socket", errno);
  sockaddr_nl kernel = {};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(netlink.get(), request.data(), request.size(), MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&kernel),
               sizeof(kernel)) != static_cast<ssize_t>(request.size())) {
    return system_status("cannot ask the kernel about a socket", errno);
  }
  std::string answer(kMaxInetDiagAnswer, '\0');
  sockaddr_nl sender = {};
  socklen_t length = sizeof(sender);
  const ssize_t got = ::recvfrom(netlink.get(), answer.data(), answer.size(), MSG_DONTWAIT,
                                 reinterpret_cast<sockaddr*>(&sender), &length);
  if (got < 0) return system_status("the kernel does not answer a request about a socket", errno);
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
// `use` for each socket, until it returns true. An error if no file could be read.
absl::Status read_proc(const std::function<bool(const ProcNetTcpLine&)>& use) {
  absl::Status status = absl::UnavailableError("cannot read /proc/net/tcp");
  for (const char* const path : {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
    std::ifstream file(path);
    if (!file.is_open() && is_shortage(errno)) return system_status("cannot read /proc/net/tcp", errno);
    std::string line;
    while (std::getline(file, line)) {
      status = absl::OkStatus();
      const std::optional<ProcNetTcpLine> parsed = parse_proc_net_tcp_line(line);
      if (parsed.has_value() && use(*parsed)) return status;
    }
  }
  return status;
}

absl::StatusOr<FoundSocket> found_in_proc(const std::optional<FoundSocket>& found, const absl::Status& read) {
  if (found.has_value()) return *found;
  if (read.ok()) return absl::NotFoundError("the kernel knows no such socket");
  return read;
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
  const absl::Status own = look_up(destination, source).status();
  for (const absl::Status& status : {found.status(), own}) {
    if (is_local_shortage(status)) return status;
  }
  if (own.ok()) return absl::NotFoundError("the kernel knows no such socket");
  return absl::UnavailableError(found.status().message());
}

// A connection between IPv4 addresses may be in either file: the socket may be an IPv6 socket.
absl::StatusOr<FoundSocket> find_tcp_socket_in_proc(const TcpEnd& source, const TcpEnd& destination) {
  std::optional<FoundSocket> found;
  const absl::Status read = read_proc([&](const ProcNetTcpLine& line) {
    if (line.source == source && line.destination == destination) found = line.socket;
    return found.has_value();
  });
  return found_in_proc(found, read);
}

absl::StatusOr<FoundSocket> find_tcp_listener_by_netlink(const TcpEnd& end) {
  GRADWIRE_ASSIGN_OR_RETURN(const std::string answer, ask_kernel(inet_diag_listener_request(end, kSequence)));
  return parse_inet_diag_listener(answer, end, kSequence);
}

// As in the kernel, a socket that listens at the address itself gets the connection, and no other user can
// listen there then.
absl::StatusOr<FoundSocket> find_tcp_listener_in_proc(const TcpEnd& end) {
  std::optional<FoundSocket> found;
  const absl::Status read = read_proc([&](const ProcNetTcpLine& line) {
    if (line.socket.state != FoundSocket::kListen || line.source.port != end.port) return false;
    const bool exact = line.source == end;
    if (exact || (is_any(line.source) && !found.has_value())) found = line.socket;
    return exact;
  });
  return found_in_proc(found, read);
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
      if (is_local_shortage(listener.status())) return listener.status();
      if (!listener.ok()) return gone;
      return listener->inode != 0 && is_connected(socket) ? absl::StatusOr<uid_t>(listener->user) : gone;
    }
  }
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  if (!found.ok() || !found->has_user() || !is_connected(socket)) return gone;
  return found->user;
}

}  // namespace gradwire::security
