#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/init/init_method.h"
#include "gradwire/store/init/init_url.h"

namespace gradwire::store {

// One process's call of rendezvous(): the init method with the arguments merged in.
struct InitRequest {
  InitUrl url;
  int rank = kUnknownRank;
  int world_size = kUnknownWorldSize;
  RendezvousOptions options;
  absl::Time deadline;  // A time of Clock::system().
  // Number of the attempt, for a launcher that keeps one store for all restarts; empty otherwise. It is not
  // part of the group name, which the user chooses.
  std::string attempt;
  // The store loses its contents when no process has it open.
  bool store_ends_when_unused = false;

  absl::Duration left() const;
};

// Checks that the rank is possible in the world size. InvalidArgument.
absl::Status check_rank(const InitRequest& request);

// The part that is common to all init methods, once they have a store. Forms the group in the store
// (store/formation/group_formation.h) and returns the group's part of the store.
absl::StatusOr<Rendezvous> join_group(std::shared_ptr<Store> store, const InitRequest& request);

// Opens the TcpStore at `endpoint`. This process hosts it if it has rank 0 or, with the rank unknown, if it
// is the first process on the host that the endpoint names.
absl::StatusOr<std::shared_ptr<Store>> open_tcp_store(const InitRequest& request, const Endpoint& endpoint);

absl::StatusOr<Rendezvous> init_env(InitRequest request);
absl::StatusOr<Rendezvous> init_tcp(const InitRequest& request);
absl::StatusOr<Rendezvous> init_file(const InitRequest& request);
absl::StatusOr<Rendezvous> init_multicast(const InitRequest& request);

}  // namespace gradwire::store
