#include "gradwire/transport/http/http_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/transport/tcp/address.h"

namespace gradwire::transport {
namespace {

// Connections that have not been accepted yet.
constexpr int kBacklog = 16;

absl::Status failed(absl::string_view what, const std::string& address) {
  return absl::UnavailableError(absl::StrCat(what, " ", address, ": ", std::strerror(errno)));
}

absl::Status malformed(const std::string& address) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed address of an HTTP server: got \"", address,
                   "\", expected \"HOST:PORT\", \"[IPV6]:PORT\" or \"unix:PATH\""));
}

// Splits "HOST:PORT" and "[HOST]:PORT".
bool split(absl::string_view text, std::string& host, int& port) {
  const std::size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return false;
  absl::string_view name = text.substr(0, colon);
  if (absl::ConsumePrefix(&name, "[")) {
    if (!absl::ConsumeSuffix(&name, "]")) return false;
  } else if (absl::StrContains(name, ":")) {
    return false;
  }
  host = std::string(name);
  return !name.empty() && absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 0 && port <= 65'535;
}

absl::StatusOr<HttpSocket> open_file(std::string path) {
  if (absl::EndsWith(path, "/")) absl::StrAppend(&path, absl::Hex(random_id(), absl::kZeroPad16), ".sock");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a socket must have 1 to ", sizeof(address.sun_path) - 1, " bytes, got \"", path, "\""));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  HttpSocket socket;
  socket.address = absl::StrCat("unix:", path);
  socket.socket = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.socket.valid()) return failed("cannot create a socket for", socket.address);
  if (bind(socket.socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return failed("cannot bind", socket.address);
  socket.file = path;
  // Before listen(), so that no other user ever connects.
  if (chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || listen(socket.socket.get(), kBacklog) != 0) {
    absl::Status status = failed("cannot listen on", socket.address);
    unlink(path.c_str());
    return status;
  }
  return socket;
}

absl::StatusOr<HttpSocket> open_tcp(const SocketAddress& address) {
  HttpSocket socket;
  socket.local = is_loopback(address);
  const std::string name = to_string(address);
  socket.socket =
      Descriptor(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.socket.valid()) return failed("cannot create a socket for", name);
  const int on = 1;
  // A port whose last connections have just ended may be used again.
  setsockopt(socket.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.socket.get(), address.get(), address.length) != 0) return failed("cannot bind", name);
  if (listen(socket.socket.get(), kBacklog) != 0) return failed("cannot listen on", name);
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(socket.socket.get(), bound.get(), &bound.length) != 0)
    return failed("cannot read the address of", name);
  socket.address = to_string(bound);
  return socket;
}

}  // namespace

absl::StatusOr<HttpSocket> open_http_socket(const std::string& address, bool insecure,
                                            const std::string& consent) {
  if (absl::string_view path = address; absl::ConsumePrefix(&path, "unix:"))
    return open_file(std::string(path));
  std::string host;
  int port = 0;
  if (!split(address, host, port)) return malformed(address);
  GRADWIRE_ASSIGN_OR_RETURN(const std::vector<SocketAddress> candidates, resolve_bind_addresses(host, port));
  absl::Status status = malformed(address);
  for (const SocketAddress& candidate : candidates) {
    if (!is_loopback(candidate) && !insecure) {
      return absl::FailedPreconditionError(
          absl::StrCat("HTTP server at ", address, " refused: other hosts can reach ", to_string(candidate),
                       ", and HTTP has no credentials; use a loopback address, or allow it with ", consent));
    }
    absl::StatusOr<HttpSocket> socket = open_tcp(candidate);
    if (socket.ok()) return socket;
    status = socket.status();
  }
  return status;
}

}  // namespace gradwire::transport
