#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

// How long a store that holds a port of this machine may take to answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

// The stores that this process hosts, by port, so that whoever joins one of them here keeps it alive: groups
// of two names at one address, or an agent and a process group, end in any order. They come from calls that
// know nothing of each other but the address, and have no object in common that could own this; and a port is
// the process's, whoever asks for it. The table itself keeps nothing alive.
class HostedStores {
 public:
  static HostedStores& instance() {
    static HostedStores* all = new HostedStores;
    return *all;
  }

  absl::StatusOr<std::shared_ptr<Store>> host(const Endpoint& endpoint, absl::Duration timeout) {
    // Nobody finds the port taken by a store that is not noted yet.
    MutexLock lock(mutex_);
    GRADWIRE_ASSIGN_OR_RETURN(
        std::shared_ptr<TcpStore> hosted,
        TcpStore::open(endpoint.host, endpoint.port, {.is_master = true, .timeout = timeout}));
    stores_[hosted->port()] = hosted;
    return std::shared_ptr<Store>(std::move(hosted));
  }

  // None where another process has the port.
  std::shared_ptr<Store> find(int port) {
    MutexLock lock(mutex_);
    const auto found = stores_.find(port);
    return found == stores_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<int, std::weak_ptr<Store>> stores_ ABSL_GUARDED_BY(mutex_);
};

// A connection to a store of this process, and the store.
struct JoinedHere {
  std::shared_ptr<Store> joined;
  std::shared_ptr<Store> hosted;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> open_tcp_store(const InitRequest& request, const Endpoint& endpoint) {
  const bool may_host =
      request.rank == 0 || (request.rank == kUnknownRank && is_this_machine(endpoint.host).value_or(false));
  if (!may_host) return TcpStore::open(endpoint.host, endpoint.port, {.timeout = request.left()});
  absl::StatusOr<std::shared_ptr<Store>> hosted = HostedStores::instance().host(endpoint, request.left());
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
  if (!joined.ok()) return joined;
  std::shared_ptr<Store> here = HostedStores::instance().find(endpoint.port);
  if (here == nullptr) return joined;
  const auto both = std::make_shared<JoinedHere>(JoinedHere{*std::move(joined), std::move(here)});
  return std::shared_ptr<Store>(both, both->joined.get());
}

absl::StatusOr<Rendezvous> init_tcp(const InitRequest& request) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, open_tcp_store(request, request.url.endpoint));
  return join_group(std::move(store), request);
}

}  // namespace gradwire::store
