#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/init/init_url.h"
#include "gradwire/store/init_method.h"

namespace gradwire::store {

// One process's attempt to find the others: the init method with the arguments merged in.
struct InitRequest {
  InitUrl url;
  int rank = kUnknownRank;
  int world_size = kUnknownWorldSize;
  RendezvousOptions options;
  absl::Time deadline;  // Of Clock::system().
  // Told apart from the group name, which a user chooses: restarts of a launcher that keeps one store for
  // all.
  std::string attempt;
  // The store is begun afresh by whoever finds nobody else at it.
  bool store_is_forgotten = false;

  absl::Duration left() const;
};

// The rank and world size must be possible together. InvalidArgument.
absl::Status check_rank(const InitRequest& request);

// What every method does once it has a store: finds the others in it (store/formation/group_formation.h), and
// narrows it down to the group.
absl::StatusOr<Rendezvous> join_group(std::shared_ptr<Store> store, const InitRequest& request);

// The TcpStore at `endpoint`, hosted here if that is this process's part: rank 0, or, with the rank unknown,
// the first process of the host that the endpoint names.
absl::StatusOr<std::shared_ptr<Store>> open_tcp_store(const InitRequest& request, const Endpoint& endpoint);

absl::StatusOr<Rendezvous> init_env(InitRequest request);
absl::StatusOr<Rendezvous> init_tcp(const InitRequest& request);
absl::StatusOr<Rendezvous> init_file(const InitRequest& request);
absl::StatusOr<Rendezvous> init_multicast(const InitRequest& request);

}  // namespace gradwire::store
