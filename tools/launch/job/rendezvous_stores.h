#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/rendezvous/client.h"

namespace gradwire::tools {

// The stores of a job that this launcher serves or uses: the launchers' store, in which the launchers form
// the rendezvous, and the workers' store of each round.
//
//   one node    the launchers' store is in memory; this launcher serves the workers' store
//   static      the launcher of node 0 serves one store for both
//   store       the launcher on the endpoint's host serves one store for both; if several launchers run
//               there, the one that gets the port
//   etcd        the launchers' store is etcd; the launcher of group rank 0 serves the workers' store of each
//               round, so that no host has to live as long as the job
//
// For one thread only. Owns the stores that it serves.
class RendezvousStores {
 public:
  // Serves the store if that is this launcher's task. FailedPrecondition: the port is in use. Unavailable: a
  // host cannot be resolved, or has no route; a retry may succeed.
  // `security`: what this launcher proves itself with, and demands of others, in its own stores. etcd has
  // settings of its own (RendezvousConf).
  static absl::StatusOr<std::unique_ptr<RendezvousStores>> open(const LaunchOptions& options,
                                                                std::string run_id,
                                                                const SecurityOptions& security);

  // Returns a function that opens the launchers' store. It may outlive the RendezvousStores.
  rendezvous::RendezvousClient::OpenStore opener() const;
  // Whether this launcher serves the launchers' store for others.
  bool hosts_store() const { return server_ != nullptr && options_.max_nodes > 1; }
  // How the workers' store of a round comes to be. With one node nobody else waits for prepare_round().
  rendezvous::RoundStore round_store() const;
  // The limit for one call to the launchers' store.
  absl::Duration read_timeout() const;
  // The address at which other nodes reach this one.
  const std::string& own_address() const { return own_address_; }

  // Makes the workers' store ready for a round, whose workers have not started yet, and returns its address.
  // With etcd it serves a new store and ends that of the previous round. Otherwise it removes the keys that
  // PyTorch's programs left in an earlier round. Takes at most read_timeout: DeadlineExceeded.
  absl::StatusOr<rendezvous::Address> prepare_round(int64_t round);
  // The address at which this node's workers reach the workers' store of a round. With etcd it is that of the
  // record. Otherwise it is the one that this launcher was given: the nodes may reach the store by different
  // addresses, for example behind address translation.
  rendezvous::Address workers_store(const rendezvous::RoundInfo& round) const;
  // Returns a function that opens the workers' store of a round for the launcher itself, within a timeout. It
  // may outlive the RendezvousStores.
  rendezvous::RendezvousClient::OpenStore workers_opener(const rendezvous::RoundInfo& round) const;
  // "store at host:29400", for messages.
  std::string location() const;

 private:
  RendezvousStores(const LaunchOptions& options, std::string run_id, const SecurityOptions& security)
      : options_(options), run_id_(std::move(run_id)), security_(security) {}
  absl::Status serve_if_host();
  absl::StatusOr<rendezvous::Address> serve_round();
  absl::StatusOr<std::unique_ptr<store::TcpStoreServer>> serve(const std::string& host, int port) const;
  // The address that this launcher was given for the store, with the port that the store really has.
  rendezvous::Address own_view_of_store() const;
  // Where this launcher reaches the store that it or another launcher serves.
  rendezvous::Address served_address() const;
  absl::StatusOr<bool> is_host() const;
  int store_port() const { return server_ == nullptr ? options_.master_port : server_->port(); }

  const LaunchOptions& options_;
  const std::string run_id_;
  const SecurityOptions security_;
  std::string own_address_;
  std::unique_ptr<store::TcpStoreServer> server_;
  std::unique_ptr<store::TcpStoreServer> round_server_;
};

}  // namespace gradwire::tools
