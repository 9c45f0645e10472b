#include "gradwire/base/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gradwire/base/random_id.h"

namespace gradwire {
namespace {

constexpr int kLowest = 12'000, kEnd = 32'000, kAttempts = 1'000;

bool is_free(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(fd);
  return bound;
}

}  // namespace

int free_port() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int port = kLowest + static_cast<int>(random_id() % (kEnd - kLowest));
    if (is_free(port)) return port;
  }
  return 0;
}

}  // namespace gradwire
