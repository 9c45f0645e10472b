#include "gradwire/tools/launch/job/rendezvous_stores.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"
#include "gradwire/store/etcd_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp/endpoint.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/launch/job/own_address.h"

namespace gradwire::tools {
namespace {

// Towards the first that can be found: of a cluster's members some may be gone.
absl::StatusOr<std::string> address_towards_any(const std::vector<std::string>& endpoints) {
  absl::StatusOr<std::string> own;
  for (const std::string& each : endpoints) {
    GRADWIRE_ASSIGN_OR_RETURN(const store::Endpoint endpoint, store::parse_endpoint(each));
    own = address_towards(endpoint.host, endpoint.port);
    if (own.ok()) break;
  }
  return own;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousStores>> RendezvousStores::open(const LaunchOptions& options,
                                                                         std::string run_id) {
  std::unique_ptr<RendezvousStores> meeting(new RendezvousStores(options, std::move(run_id)));
  if (!options.local_addr.empty()) {
    meeting->own_address_ = options.local_addr;
  } else if (options.max_nodes == 1 && options.backend != RendezvousBackend::kEtcd) {
    meeting->own_address_ = "127.0.0.1";
  } else if (options.backend == RendezvousBackend::kEtcd) {
    GRADWIRE_ASSIGN_OR_RETURN(meeting->own_address_, address_towards_any(options.endpoints));
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(meeting->own_address_,
                              address_towards(options.master_addr, options.master_port));
  }
  // Last: what can fail and be tried again must not take a store away that others have found.
  if (options.backend != RendezvousBackend::kEtcd) GRADWIRE_RETURN_IF_ERROR(meeting->serve_if_ours());
  return meeting;
}

absl::StatusOr<bool> RendezvousStores::is_ours() const {
  if (options_.max_nodes == 1) return true;
  if (options_.conf.is_host) return *options_.conf.is_host;
  if (options_.backend == RendezvousBackend::kStatic) return options_.node_rank == 0;
  return store::is_this_machine(options_.master_addr);
}

absl::Status RendezvousStores::serve_if_ours() {
  GRADWIRE_ASSIGN_OR_RETURN(const bool ours, is_ours());
  if (!ours) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<store::TcpStoreServer>> server =
      store::TcpStoreServer::start({.host = options_.master_addr, .port = options_.master_port});
  if (server.ok()) {
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  // Another launcher of the job on this machine may have come first; whether it is one shows when it is
  // asked.
  const bool may_be_one_of_ours = absl::IsFailedPrecondition(server.status()) && options_.max_nodes > 1 &&
                                  options_.backend == RendezvousBackend::kStore &&
                                  !options_.conf.is_host.value_or(false);
  if (may_be_one_of_ours) return absl::OkStatus();
  // Not the command line's fault: the port may be free the next time.
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot serve the store at ", options_.master_addr, ":", options_.master_port, ": ",
      server.status().message(),
      options_.max_nodes == 1 ? " (--master_port chooses another, --standalone a free one)" : ""));
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
  // Who serves it need not be able to reach himself by the name that the others use.
  const bool loopback = server_ == nullptr || store::is_loopback(options_.master_addr);
  const std::string host = loopback ? options_.master_addr : "127.0.0.1";
  const int port = store_port();
  return [host, port](absl::Duration timeout) -> absl::StatusOr<std::shared_ptr<store::Store>> {
    return store::TcpStore::open(host, port, {.timeout = timeout, .wait_for_workers = false});
  };
}

absl::StatusOr<rendezvous::Address> RendezvousStores::serve_round() {
  round_server_.reset();
  GRADWIRE_ASSIGN_OR_RETURN(round_server_, store::TcpStoreServer::start({.host = own_address_, .port = 0}));
  return rendezvous::Address{.host = own_address_, .port = round_server_->port()};
}

rendezvous::Address RendezvousStores::workers_store(const rendezvous::RoundInfo& round) const {
  if (round.store) return *round.store;
  return {.host = options_.master_addr, .port = store_port()};
}

std::string RendezvousStores::place() const {
  if (options_.backend == RendezvousBackend::kEtcd) {
    return absl::StrCat("etcd at ", absl::StrJoin(options_.endpoints, ","), ", job ", run_id_);
  }
  return absl::StrCat("store at ", options_.master_addr, ":", store_port());
}

}  // namespace gradwire::tools
