#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/store.h"

namespace gradwire::store {

// What a process knows once it has found the others of its job.
struct Rendezvous {
  // Empty when handed out, and shared by exactly the members of the group. Whoever hosts it hosts it for as
  // long as it keeps this pointer.
  std::shared_ptr<Store> store;
  // This process's, 0..world_size-1; in an open group any number of its own from 0 up.
  int rank = -1;
  // Number of processes in the group; 0: an open group.
  int world_size = 0;
};

// Leaves a layer above room to put something before a name of kMaxNameLength.
inline constexpr std::size_t kMaxGroupName = 160;

// What rendezvous() is given beside the place.
struct RendezvousOptions {
  // For all of it, and the store's timeout() afterwards.
  absl::Duration timeout = absl::Seconds(300);
  // Groups of different names at one address do not see one another. Empty, or a name as in base/name.h of at
  // most kMaxGroupName characters.
  std::string group_name;
  // A process that has a rank of such a group may come as that rank again, to the next group: otherwise that
  // is an error until it has given the first one's store back.
  bool again = false;
};

// A rank that is still to be assigned, or is in the environment or the init method.
inline constexpr int kUnknownRank = -1;
// A world size that is in the environment or the init method.
inline constexpr int kUnknownWorldSize = -1;

// Finds the others by one of
//
//   env://                  MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE of the environment
//   tcp://host:port         a TcpStore there, hosted by rank 0; without ranks by the first process on that
//                           host
//   tcp://239.x.y.z:port    multicast on the local network, [ff1x::...]:port too; the members choose who
//                           hosts
//   file:///dir/name        a FileStore; the directory must exist
//
// and returns when all `world_size` members are there. World size 0 is an open group: nobody is waited for.
// Where the rank is unknown it is assigned, in order of arrival; a group should give all its ranks or none.
// An argument wins over the environment and over "?rank=..&world_size=.." at the end of the method.
// docs/store.md says more of each.
//
// Errors, of which those that concern the group are told at once to all its processes, before it is complete,
// and after that to who comes in excess: InvalidArgument for a method, rank or world size that cannot be
// right, for what is missing (all of it, in one message), and for world sizes that differ; AlreadyExists for
// a rank that two processes claim; each names both processes. NotFound for a directory that does not exist;
// FailedPrecondition for a port that is taken or a group that is full; Unavailable for a host that cannot be
// reached; DeadlineExceeded that names the ranks that did not come.
absl::StatusOr<Rendezvous> rendezvous(absl::string_view init_method, int rank = kUnknownRank,
                                      int world_size = kUnknownWorldSize,
                                      const RendezvousOptions& options = {});

// The same for processes that share a store already. It may hold other keys.
absl::StatusOr<Rendezvous> rendezvous(std::shared_ptr<Store> store, int rank, int world_size,
                                      const RendezvousOptions& options = {});

}  // namespace gradwire::store
