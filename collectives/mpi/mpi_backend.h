#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/group/backend_registry.h"

namespace gradwire::collectives {

// The backend "mpi": Open MPI, whose mpirun has started the processes. Linking this library registers it.
//
// make: the ranks may be any processes of one MPI_COMM_WORLD; they find one another in the group's store.
// Options: "block_bytes", the most that one call of MPI moves (up to and by default 2^30). Errors:
// InvalidArgument for other options, for ranks of different launches and for two ranks in one process;
// FailedPrecondition outside of mpirun; DeadlineExceeded that names the first rank that did not come.
absl::StatusOr<std::unique_ptr<GroupBackend>> make_mpi_backend(const BackendContext& context);

// Rank and size in MPI_COMM_WORLD.
absl::StatusOr<std::pair<int, int>> mpi_launch_place();

// A TcpStore that rank 0 holds, whose address travels by MPI. Called by all that were launched.
absl::StatusOr<std::shared_ptr<store::Store>> mpi_launch_store(absl::Duration timeout);

// What Open MPI says of itself.
bool mpi_takes_cuda();

}  // namespace gradwire::collectives
