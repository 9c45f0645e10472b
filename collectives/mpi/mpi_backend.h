#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/collectives/registry/backend_registry.h"

namespace gradwire::collectives {

// The backend "mpi" over Open MPI. mpirun must have started the processes. A program that links this library
// registers the backend.

// Makes one member's end of a group. The ranks may be any processes of one MPI_COMM_WORLD; they find one
// another in the group's store. Options: "block_bytes", the maximum number of bytes that one call of MPI
// moves (at most 2^30, which is the default). Errors: InvalidArgument for other options, for ranks of
// different launches, and for two ranks in one process; FailedPrecondition if no MPI launcher started the
// process; DeadlineExceeded that names the first rank that did not arrive.
absl::StatusOr<std::unique_ptr<GroupBackend>> make_mpi_backend(const BackendContext& context);

// The rank and the size in MPI_COMM_WORLD.
absl::StatusOr<std::pair<int, int>> mpi_launch_rank_and_size();

// Makes a TcpStore on rank 0 of MPI_COMM_WORLD; the others get its address through MPI. All launched
// processes must call it.
absl::StatusOr<std::shared_ptr<store::Store>> mpi_launch_store(absl::Duration timeout);

// Whether Open MPI reports that it supports CUDA tensors.
bool mpi_takes_cuda();

}  // namespace gradwire::collectives
