#include "gradwire/store/testing/pytorch_ping.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/c10d/c10d_protocol.h"

namespace gradwire::store {

std::string ping_as_pytorch(const std::string& host, int port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return "not connected";
  std::string bytes(kC10dGreeting);
  bytes.push_back(static_cast<char>(C10dQuery::kPing));
  put_c10d_number(bytes, 77, 4);
  ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  // A test that reaches it fails.
  const timeval timeout = {60, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  char answer[4];
  const ssize_t got = ::recv(socket.get(), answer, sizeof(answer), MSG_WAITALL);
  if (got == sizeof(answer)) return "served";
  return got == 0 || errno == ECONNRESET ? "refused" : "no answer";
}

}  // namespace gradwire::store
