#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::store {

// Result of rendezvous(): the group that this process is now a member of.
struct Rendezvous {
  // The group's store: empty at first, and shared by exactly the members of the group. The process that hosts
  // the store hosts it for as long as it keeps this pointer.
  std::shared_ptr<Store> store;
  // This process's rank, 0..world_size-1. In an open group: any unique number from 0 up.
  int rank = -1;
  // Number of processes in the group. 0 means an open group.
  int world_size = 0;
};

// Longest group name. Shorter than kMaxNameLength, so that a layer above can add a prefix to the name.
inline constexpr std::size_t kMaxGroupName = 160;

// Options of rendezvous().
struct RendezvousOptions {
  // Limit for the whole rendezvous; afterwards the timeout() of the group's store.
  absl::Duration timeout = absl::Seconds(300);
  // Keeps groups at one address apart: groups of different names do not see one another. Empty, or a name as
  // in base/name.h of at most kMaxGroupName characters.
  std::string group_name;
  // Lets a process that still has a rank in the current group join the next group. Otherwise that is an error
  // until the process has released the store of the current group.
  bool again = false;
  // Used for a TcpStore.
  SecurityOptions security = {};
};

// The rank is to be assigned, or comes from the environment or the init method.
inline constexpr int kUnknownRank = -1;
// The world size comes from the environment or the init method.
inline constexpr int kUnknownWorldSize = -1;

// Finds the other processes of the group by one of these init methods:
//
//   env://                  MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE of the environment
//   tcp://host:port         a TcpStore at that address, hosted by rank 0; without ranks, by the first process
//                           on that host
//   tcp://239.x.y.z:port    multicast on the local network, also [ff1x::...]:port; the members elect the
//                           process that hosts the store
//   file:///dir/name        a FileStore; the directory must exist
//
// Returns when all `world_size` members have arrived. World size 0 is an open group, which waits for no other
// member. An unknown rank is assigned in order of arrival; give ranks to all members of a group or to none.
// An argument takes precedence over the environment and over "?rank=..&world_size=.." at the end of the
// method. docs/store.md describes each method.
//
// An error that concerns the whole group is reported at once to all its processes while the group forms, and
// later to each process that comes in addition. Errors: InvalidArgument for an invalid method, rank or world
// size, for missing settings (all in one message), and for world sizes that differ. AlreadyExists if two
// processes claim one rank. The last two name both processes. NotFound for a directory that does not exist.
// FailedPrecondition for a port that is in use or a group that is full. Unavailable for a host that cannot be
// reached. DeadlineExceeded, which names the ranks that did not arrive.
absl::StatusOr<Rendezvous> rendezvous(absl::string_view init_method, int rank = kUnknownRank,
                                      int world_size = kUnknownWorldSize,
                                      const RendezvousOptions& options = {});

// The same for processes that already share a store. The store may hold other keys.
absl::StatusOr<Rendezvous> rendezvous(std::shared_ptr<Store> store, int rank, int world_size,
                                      const RendezvousOptions& options = {});

}  // namespace gradwire::store
