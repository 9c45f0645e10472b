#include "gradwire/tools/launch/job/own_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::tools {

absl::StatusOr<std::string> address_towards(const std::string& host, int port) {
  if (store::is_loopback(host)) return "127.0.0.1";
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<transport::SocketAddress> targets,
                            transport::resolve_addresses(transport::join_host_port(host, port)));
  int error = 0;
  for (const transport::SocketAddress& each : targets) {
    // connect() of a datagram socket sends nothing; it only selects the route.
    const Descriptor socket(::socket(each.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    transport::SocketAddress own;
    own.length = sizeof(own.storage);
    char text[NI_MAXHOST] = "";
    if (socket.valid() && connect(socket.get(), each.get(), each.length) == 0 &&
        getsockname(socket.get(), own.get(), &own.length) == 0 &&
        getnameinfo(own.get(), own.length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
    error = errno;
  }
  return errno_status(absl::StrCat("no route to ", host,
                                   "; set --local_addr to the address at which others reach this machine"),
                      error);
}

}  // namespace gradwire::tools
