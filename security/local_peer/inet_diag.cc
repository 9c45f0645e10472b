#include "gradwire/security/local_peer/inet_diag.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

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

}  // namespace gradwire::security
