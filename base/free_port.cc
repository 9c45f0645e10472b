#include "gradwire/base/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gradwire {

FreePort::FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  // 1. The system chooses a port on which no socket is bound.
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket_, generic, length) != 0 || ::getsockname(socket_, generic, &length) != 0) return;
  // 2. From now on others may bind the port if they set SO_REUSEADDR too, because this socket never
  //    listens. Set before step 1, it would let the system choose a port that another process has reserved.
  const int on = 1;
  if (::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0)
    number_ = ntohs(address.sin_port);
}

FreePort::~FreePort() {
  if (socket_ >= 0) ::close(socket_);
}

int free_port() {
  FreePort port;
  port.socket_ = -1;  // The descriptor stays open.
  return port.number();
}

}  // namespace gradwire
