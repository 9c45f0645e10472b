#include "gradwire/tools/launch/job/rendezvous_stores.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/store/etcd_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/launch/job/own_address.h"
#include "gradwire/tools/launch/job/round_keys.h"

namespace gradwire::tools {
namespace {

// Returns the local address of the route to the first endpoint that can be resolved; some members of a
// cluster may be gone.
absl::StatusOr<std::string> address_towards_any(const std::vector<std::string>& endpoints) {
  absl::StatusOr<std::string> own;
  for (const std::string& each : endpoints) {
    GRADWIRE_ASSIGN_OR_RETURN(const store::Endpoint endpoint, store::parse_endpoint(each));
    own = address_towards(endpoint.host, endpoint.port);
    if (own.ok()) break;
  }
  return own;
}

absl::StatusOr<std::shared_ptr<store::Store>> open_store(const rendezvous::Address& where,
                                                         const SecurityOptions& security,
                                                         absl::Duration timeout) {
  return store::TcpStore::open(where.host, where.port,
                               {.timeout = timeout, .wait_for_workers = false, .security = security});
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousStores>> RendezvousStores::open(const LaunchOptions& options,
                                                                         std::string run_id,
                                                                         const SecurityOptions& security) {
  std::unique_ptr<RendezvousStores> stores(new RendezvousStores(options, std::move(run_id), security));
  if (!options.local_addr.empty()) {
    stores->own_address_ = options.local_addr;
  } else if (options.max_nodes == 1 && options.backend != RendezvousBackend::kEtcd) {
    stores->own_address_ = "127.0.0.1";
  } else if (options.backend == RendezvousBackend::kEtcd) {
    GRADWIRE_ASSIGN_OR_RETURN(stores->own_address_, address_towards_any(options.endpoints));
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(stores->own_address_,
                              address_towards(options.master_addr, options.master_port));
  }
  // Serve the store as the last step: a retry after a failure must not close a store that others have already
  // found.
  if (options.backend != RendezvousBackend::kEtcd) GRADWIRE_RETURN_IF_ERROR(stores->serve_if_host());
  return stores;
}

// The launchers do not talk to each other yet, so each decides by itself. With --rdzv_conf is_host the user
// decides, for hosts that do not know the name under which others reach them.
absl::StatusOr<bool> RendezvousStores::is_host() const {
  if (options_.max_nodes == 1) return true;
  if (options_.conf.is_host) return *options_.conf.is_host;
  if (options_.backend == RendezvousBackend::kStatic) return options_.node_rank == 0;
  return store::is_this_machine(options_.master_addr);
}

// The one place that says what the servers of this launcher demand of their clients.
absl::StatusOr<std::unique_ptr<store::TcpStoreServer>> RendezvousStores::serve(const std::string& host,
                                                                               int port) const {
  store::TcpStoreServerOptions server{.host = host, .port = port, .security = security_};
  // Otherwise the kind of security decides.
  if (options_.security.allow_unauthenticated_pytorch) server.allow_unauthenticated_pytorch = true;
  return store::TcpStoreServer::start(server);
}

absl::Status RendezvousStores::serve_if_host() {
  GRADWIRE_ASSIGN_OR_RETURN(const bool host_here, is_host());
  if (!host_here) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<store::TcpStoreServer>> server =
      serve(options_.master_addr, options_.master_port);
  if (server.ok()) {
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  // Another launcher of the job on this machine may already have the port. Whether it does shows when this
  // launcher connects.
  const bool may_be_same_job = absl::IsFailedPrecondition(server.status()) && options_.max_nodes > 1 &&
                               options_.backend == RendezvousBackend::kStore &&
                               !options_.conf.is_host.value_or(false);
  if (may_be_same_job) return absl::OkStatus();
  // Not InvalidArgument: the port may be free the next time.
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot serve the store at ", options_.master_addr, ":", options_.master_port, ": ",
      server.status().message(),
      options_.max_nodes == 1 ? "; choose another port with --master_port, or a free one with --standalone"
                              : ""));
}

rendezvous::RendezvousClient::OpenStore RendezvousStores::opener() const {
  if (options_.backend == RendezvousBackend::kEtcd) {
    store::EtcdStoreOptions etcd;
    etcd.security = options_.conf.etcd;
    return [endpoints = options_.endpoints, prefix = absl::StrCat("gradwire/launch/", run_id_),
            etcd](absl::Duration timeout) mutable -> absl::StatusOr<std::shared_ptr<store::Store>> {
      etcd.timeout = timeout;
      return store::EtcdStore::open(endpoints, prefix, etcd);
    };
  }
  if (options_.max_nodes == 1) {
    return [](absl::Duration) -> absl::StatusOr<std::shared_ptr<store::Store>> {
      return std::make_shared<store::HashStore>();
    };
  }
  return [where = served_address(), security = security_](absl::Duration timeout) {
    return open_store(where, security, timeout);
  };
}

// The launcher that serves the store may not be able to reach itself by the name that the others use.
rendezvous::Address RendezvousStores::served_address() const {
  const bool as_others_do = server_ == nullptr || store::is_loopback(options_.master_addr);
  return {.host = as_others_do ? options_.master_addr : "127.0.0.1", .port = store_port()};
}

absl::Duration RendezvousStores::read_timeout() const {
  const bool etcd = options_.backend == RendezvousBackend::kEtcd;
  return options_.conf.read_timeout.value_or(absl::Seconds(etcd ? 60 : 10));
}

rendezvous::RoundStore RendezvousStores::round_store() const {
  if (options_.backend == RendezvousBackend::kEtcd) return rendezvous::RoundStore::kServed;
  return options_.max_nodes > 1 ? rendezvous::RoundStore::kPrepared : rendezvous::RoundStore::kReady;
}

absl::StatusOr<rendezvous::Address> RendezvousStores::prepare_round(int64_t round) {
  if (options_.backend == RendezvousBackend::kEtcd) return serve_round();
  if (round > 0) {
    Clock& clock = Clock::system();
    const absl::Time deadline = clock.now() + read_timeout();
    GRADWIRE_ASSIGN_OR_RETURN(const std::shared_ptr<store::Store> store,
                              open_store(served_address(), security_, read_timeout()));
    GRADWIRE_RETURN_IF_ERROR(remove_round_keys(*store, clock, deadline));
  }
  return own_view_of_store();
}

rendezvous::Address RendezvousStores::own_view_of_store() const {
  return {.host = options_.master_addr, .port = store_port()};
}

rendezvous::Address RendezvousStores::workers_store(const rendezvous::RoundInfo& round) const {
  const bool elsewhere = options_.backend == RendezvousBackend::kEtcd && round.store.has_value();
  return elsewhere ? *round.store : own_view_of_store();
}

rendezvous::RendezvousClient::OpenStore RendezvousStores::workers_opener(
    const rendezvous::RoundInfo& round) const {
  const bool elsewhere = options_.backend == RendezvousBackend::kEtcd && round.store.has_value();
  return [where = elsewhere ? *round.store : served_address(), security = security_](absl::Duration timeout) {
    return open_store(where, security, timeout);
  };
}

// The old server ends first: no worker of the previous round runs any more, because all nodes were ready.
absl::StatusOr<rendezvous::Address> RendezvousStores::serve_round() {
  round_server_.reset();
  GRADWIRE_ASSIGN_OR_RETURN(round_server_, serve(own_address_, 0));
  return rendezvous::Address{.host = own_address_, .port = round_server_->port()};
}

std::string RendezvousStores::location() const {
  if (options_.backend == RendezvousBackend::kEtcd) {
    return absl::StrCat("etcd at ", absl::StrJoin(options_.endpoints, ","), ", job ", run_id_);
  }
  return absl::StrCat("store at ", options_.master_addr, ":", store_port());
}

}  // namespace gradwire::tools
