#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/host_group.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives::cpu {

// Which members of a group share a host, and what this member shares with the others of its host.
struct HostLayout {
  // By member: the first member on the same host.
  std::vector<int> leader_of;
  std::vector<int> leaders;
  // Members on this host.
  std::vector<int> neighbours;
  // nullptr for the only member on a host.
  std::unique_ptr<HostGroup> host;
  // Where all are on one host.
  std::shared_ptr<ShmP2p> shm_p2p;

  bool one_host() const { return host != nullptr && leaders.size() == 1; }
};

struct HostLayoutOptions {
  int rank = 0;
  int size = 1;
  // The group's own.
  std::shared_ptr<store::Store> store;
  absl::Duration timeout;
  // Members with the same one, not empty, share memory.
  std::string host;
  // As HostGroup's; 0: as measured.
  std::size_t slot_bytes = 0;
  std::size_t flat_bytes = 0;
  // Where the rings run callbacks.
  std::shared_ptr<Executor> executor;
};

// Called by all members. A host whose members cannot share memory counts as one host for each of them, with a
// line in the log. Errors: DeadlineExceeded (a member did not come); the store's.
absl::StatusOr<HostLayout> lay_out_hosts(const HostLayoutOptions& options);

}  // namespace gradwire::collectives::cpu
