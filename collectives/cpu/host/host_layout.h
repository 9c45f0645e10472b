#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/threads/executor.h"
#include "gradwire/collectives/cpu/host/host_group.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives::cpu {

// The hosts of a group's members, and the objects that this member shares with the other members of its host.
struct HostLayout {
  // For each member, the first member on the same host, which is its leader.
  std::vector<int> leader_of;
  std::vector<int> leaders;
  // Members on this host.
  std::vector<int> neighbours;
  // nullptr if this member is the only one on its host.
  std::unique_ptr<HostGroup> host;
  // Set only if all members are on one host.
  std::shared_ptr<ShmP2p> shm_p2p;

  bool one_host() const { return host != nullptr && leaders.size() == 1; }
};

struct HostLayoutOptions {
  int rank = 0;
  int size = 1;
  // The store of the group.
  std::shared_ptr<store::Store> store;
  absl::Duration timeout;
  // Members with the same non-empty string share memory.
  std::string host;
  // As in HostGroup::Options. 0: the measured default.
  std::size_t slot_bytes = 0;
  std::size_t flat_bytes = 0;
  // Runs the callbacks of ShmP2p.
  std::shared_ptr<Executor> executor;
};

// All members must call it. If the members of a host cannot share memory, each of them counts as a host of
// its own, and a warning is logged. Errors: DeadlineExceeded if a member did not arrive; the errors of the
// store.
absl::StatusOr<HostLayout> lay_out_hosts(const HostLayoutOptions& options);

}  // namespace gradwire::collectives::cpu
