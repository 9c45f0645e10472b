#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "store/init_internal.h"
#include "store/tcp_store.h"

namespace gradwire::store {
namespace {

// Whether `host` is an address of this machine: whether a socket can be bound to it.
bool is_here(const std::string& host) {
  if (is_loopback(host)) return true;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const int fd = socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const bool bound = bind(fd, entry->ai_addr, entry->ai_addrlen) == 0;  // With port 0: any.
    close(fd);
    if (bound) return true;
  }
  return false;
}

// How long a store that holds a port of this machine may take to answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> open_tcp_store(const InitRequest& request, const Endpoint& endpoint) {
  const bool may_host = request.rank == 0 || (request.rank == kUnknownRank && is_here(endpoint.host));
  if (!may_host) return TcpStore::open(endpoint.host, endpoint.port, {.timeout = request.left()});
  absl::StatusOr<std::shared_ptr<Store>> hosted =
      TcpStore::open(endpoint.host, endpoint.port, {.is_master = true, .timeout = request.left()});
  if (!absl::IsFailedPrecondition(hosted.status())) return hosted;
  // Taken: by the member that came first, or, where groups have names, by another group's store that this one
  // shares. Rank 0 of a group without a name alone was meant to have the port.
  if (request.rank == 0 && request.options.group_name.empty()) return hosted;
  absl::StatusOr<std::shared_ptr<Store>> joined =
      TcpStore::open(endpoint.host, endpoint.port, {.timeout = std::min(request.left(), kAnswerTime)});
  if (absl::IsUnavailable(joined.status())) {
    return with_context(joined.status(),
                        absl::StrCat("port ", endpoint.port, " is taken, but not by a Gradwire store"));
  }
  return joined;
}

absl::StatusOr<Rendezvous> init_tcp(const InitRequest& request) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, open_tcp_store(request, request.url.endpoint));
  return join_group(std::move(store), request);
}

}  // namespace gradwire::store
