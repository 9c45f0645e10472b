#pragma once

#include <c10/core/DeviceType.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/backend.h"
#include "gradwire/collectives/group_backend.h"
#include "gradwire/security/security_options.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::collectives {

// The arguments of a backend's factory, which makes one member's end of a group.
struct BackendContext {
  // A store for this group alone, shared by its members; empty at first.
  std::shared_ptr<store::Store> store;
  // The group's name, unique within the job.
  std::string group;
  // This rank in the group.
  int rank = 0;
  int size = 1;
  // The rank in the world of each rank of the group, ascending.
  std::vector<int> world_ranks;
  // The limit for making the group, and for each of its operations.
  absl::Duration timeout;
  // The CUDA device of this rank, or -1.
  int device_id = -1;
  std::map<std::string, std::string> options;
  SecurityOptions security;
  // GroupBackend::world_state() of the world's backend, if that is the same kind of backend. nullptr for
  // another kind, and when the world itself is made.
  std::shared_ptr<void> world_state;
};

// Makes one member's end of a group. All members call it at about the same time. It may use the store, and
// need not wait for the other members. An error on one rank becomes an error on all ranks. Errors:
// InvalidArgument for an unknown option.
using BackendFactory = absl::StatusOr<std::unique_ptr<GroupBackend>> (*)(const BackendContext& context);

// The functions of a registered backend.
struct BackendEntry {
  BackendFactory make = nullptr;
  // The rank and the world size that the backend's own launcher (mpirun) gave to this process; nullptr if the
  // backend has no launcher.
  absl::StatusOr<std::pair<int, int>> (*launch_rank_and_size)() = nullptr;
  // A store shared by all launched processes; nullptr if the backend cannot provide one. Used if the init
  // method is env:// and MASTER_PORT is not set.
  absl::StatusOr<std::shared_ptr<store::Store>> (*launch_store)(absl::Duration timeout) = nullptr;
  // Whether the backend accepts CUDA tensors (mpi: whether Open MPI does). nullptr: only kNccl does.
  bool (*takes_cuda)() = nullptr;
};

// A backend for the tensors of one type of accelerator, in groups that also have the cpu backend.
struct AcceleratorBackend {
  c10::DeviceType type = c10::DeviceType::CUDA;
  // The name in messages, for example "nccl".
  std::string name;
  BackendFactory make = nullptr;
};

// Registers a backend, in place of an earlier one of the same name. Libraries that are linked with alwayslink
// call it during static initialisation.
void register_backend(Backend backend, BackendEntry entry);
inline void register_backend(Backend backend, BackendFactory make) {
  register_backend(backend, BackendEntry{.make = make});
}

// Registers the backend that a group without a named backend uses for tensors of this type of device, in
// place of an earlier one for that type. A registered kNccl is the backend for CUDA without a call of this
// function. Called as register_backend.
void register_accelerator_backend(AcceleratorBackend backend);
// The registered backends for accelerators, at most one for each type of device, in the order of the types.
std::vector<AcceleratorBackend> accelerator_backends();

// The entry of a backend; nullptr if it is not built in. The pointer stays valid until the process ends.
const BackendEntry* find_backend(Backend backend);
// The backends that are built in.
std::vector<Backend> registered_backends();

// As parse_backend, but returns a Status instead of throwing.
absl::StatusOr<Backend> find_backend_name(absl::string_view name);

}  // namespace gradwire::collectives
