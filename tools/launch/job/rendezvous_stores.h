#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/rendezvous/client.h"

namespace gradwire::tools {

// The stores of a job, as this launcher has to do with them: the one in which the launchers meet, and the one
// in which the workers of a round do.
//
//   one node    the launchers' store is in memory; the workers' is served here
//   static      node 0's launcher serves one for both
//   store       the launcher at the endpoint serves one for both: of several on that machine the one that has
//               the port
//   etcd        the launchers' is etcd; the workers' is served, for each round, by the launcher of group rank
//               0, so that no host has to last
//
// One thread. Owns what it serves.
class RendezvousStores {
 public:
  // Serves the store if that is this launcher's part. FailedPrecondition: the port is taken. Unavailable: a
  // host is not known, or there is no way to it, which may change.
  static absl::StatusOr<std::unique_ptr<RendezvousStores>> open(const LaunchOptions& options,
                                                                std::string run_id);

  // Opens the store in which the launchers meet. May outlive the RendezvousStores.
  rendezvous::RendezvousClient::OpenStore opener() const;
  // Whether other launchers need this one for that.
  bool hosts_store() const { return server_ != nullptr && options_.max_nodes > 1; }
  // Whether each round has a store of its own, served with serve_round().
  bool round_store() const { return options_.backend == RendezvousBackend::kEtcd; }
  // At which other nodes reach this one.
  const std::string& own_address() const { return own_address_; }

  // Ends the store of the round before.
  absl::StatusOr<rendezvous::Address> serve_round();
  // Where the workers of a round find their store.
  rendezvous::Address workers_store(const rendezvous::RoundInfo& round) const;
  // "store at host:29400", for messages.
  std::string place() const;

 private:
  explicit RendezvousStores(const LaunchOptions& options, std::string run_id)
      : options_(options), run_id_(std::move(run_id)) {}
  absl::Status serve_if_ours();
  absl::StatusOr<bool> is_ours() const;
  int store_port() const { return server_ == nullptr ? options_.master_port : server_->port(); }

  const LaunchOptions& options_;
  const std::string run_id_;
  std::string own_address_;
  std::unique_ptr<store::TcpStoreServer> server_;
  std::unique_ptr<store::TcpStoreServer> round_server_;
};

}  // namespace gradwire::tools
