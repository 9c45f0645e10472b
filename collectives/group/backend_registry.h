#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/store/store.h"

namespace gradwire::collectives {

// What a backend is given to make one member's end of a group.
struct BackendContext {
  // The group's own: empty when handed out, shared by exactly its members.
  std::shared_ptr<store::Store> store;
  // Unique within the job.
  std::string group;
  // This rank in the group.
  int rank = 0;
  int size = 1;
  // The rank in the world of each rank of the group, ascending.
  std::vector<int> world_ranks;
  // Of making the group, and of its operations.
  absl::Duration timeout;
  // The CUDA device of this rank, or -1.
  int device_id = -1;
  std::map<std::string, std::string> options;
  // GroupBackend::world_state() of the world's backend, if that is of the same kind; nullptr for the world
  // itself.
  std::shared_ptr<void> world_state;
};

// Called by all members at about the same time; may use the store, and need not wait for the others. An error
// on one rank becomes an error on all. InvalidArgument for options it does not know.
using BackendFactory = absl::StatusOr<std::unique_ptr<GroupBackend>> (*)(const BackendContext& context);

struct BackendEntry {
  BackendFactory make = nullptr;
  // Rank and world size as the backend's own launcher has them (mpirun); nullptr where it has none.
  absl::StatusOr<std::pair<int, int>> (*launch_place)() = nullptr;
  // A store for all that were launched, where the backend can provide one and the init method is env://
  // without MASTER_PORT.
  absl::StatusOr<std::shared_ptr<store::Store>> (*launch_store)(absl::Duration timeout) = nullptr;
  // Whether it takes CUDA tensors (mpi: whether Open MPI can); nullptr: kNccl does, others do not.
  bool (*takes_cuda)() = nullptr;
};

// Called during static initialisation, by libraries that are linked with alwayslink. The last one counts.
void register_backend(Backend backend, BackendEntry entry);
inline void register_backend(Backend backend, BackendFactory make) {
  register_backend(backend, BackendEntry{.make = make});
}

// None when it is not built in.
const BackendEntry* find_backend(Backend backend);
std::vector<Backend> registered_backends();

// The same as parse_backend, without throwing.
absl::StatusOr<Backend> find_backend_name(absl::string_view name);

}  // namespace gradwire::collectives
