#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/fork.h"
#include "gradwire/base/mutex.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/init/init_internal.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::store {
namespace {

// How long a store on a port of this machine may take to answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

// The stores that this process hosts, by port. A member in this process that joins one of them keeps it
// alive, because two groups at one address, or an agent and a process group, may end in any order. The table
// is one per process: its users are calls that share only the address and have no common owner, and a port
// belongs to the whole process. The table itself keeps no store alive. Thread-safe.
class HostedStores {
 public:
  static HostedStores& instance() {
    static constinit PerProcess<HostedStores> all;
    return all.get();
  }

  absl::StatusOr<std::shared_ptr<Store>> host(const Endpoint& endpoint, const TcpStoreOptions& options) {
    // Hold the lock while opening: find() must not miss a store that already has its port.
    MutexLock lock(mutex_);
    GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<TcpStore> hosted,
                              TcpStore::open(endpoint.host, endpoint.port, options));
    stores_[hosted->port()] = hosted;
    return std::shared_ptr<Store>(std::move(hosted));
  }

  // Returns null if another process has the port.
  std::shared_ptr<Store> find(int port) {
    MutexLock lock(mutex_);
    const auto found = stores_.find(port);
    return found == stores_.end() ? nullptr : found->second.lock();
  }

 private:
  Mutex mutex_;
  std::map<int, std::weak_ptr<Store>> stores_ ABSL_GUARDED_BY(mutex_);
};

// A connection to a store that this process hosts, and that store.
struct LocalConnection {
  std::shared_ptr<Store> joined;
  std::shared_ptr<Store> hosted;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> open_tcp_store(const InitRequest& request, const Endpoint& endpoint) {
  const bool may_host =
      request.rank == 0 || (request.rank == kUnknownRank && is_this_machine(endpoint.host).value_or(false));
  TcpStoreOptions options{.timeout = request.left(), .security = request.options.security};
  if (!may_host) return TcpStore::open(endpoint.host, endpoint.port, options);
  options.is_master = true;
  absl::StatusOr<std::shared_ptr<Store>> hosted = HostedStores::instance().host(endpoint, options);
  options.is_master = false;
  if (!absl::IsFailedPrecondition(hosted.status())) return hosted;
  // The port is in use: by the member that came first or, if the group has a name, by the store of another
  // group, which this group then shares. Only rank 0 of a group without a name must have the port itself.
  if (request.rank == 0 && request.options.group_name.empty()) return hosted;
  options.timeout = std::min(request.left(), kAnswerTime);
  absl::StatusOr<std::shared_ptr<Store>> joined = TcpStore::open(endpoint.host, endpoint.port, options);
  if (absl::IsUnavailable(joined.status())) {
    return with_context(joined.status(),
                        absl::StrCat("port ", endpoint.port, " is in use, but not by a Gradwire store"));
  }
  if (!joined.ok()) return joined;
  std::shared_ptr<Store> local = HostedStores::instance().find(endpoint.port);
  if (local == nullptr) return joined;
  const auto both = std::make_shared<LocalConnection>(LocalConnection{*std::move(joined), std::move(local)});
  // The returned pointer owns both stores, but leads to the connection.
  return std::shared_ptr<Store>(both, both->joined.get());
}

absl::StatusOr<Rendezvous> init_tcp(const InitRequest& request) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, open_tcp_store(request, request.url.endpoint));
  return join_group(std::move(store), request);
}

}  // namespace gradwire::store
