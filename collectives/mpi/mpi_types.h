#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/collectives/mpi/mpi_runtime.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// The type and the operation that MPI needs for a reduction.
struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op;
};

// Returns MPI's own type and operation for a dtype if their results equal libtorch's. Otherwise it makes an
// operation that calls libtorch: for half, bfloat16 and bool, and for minimum and maximum of floating
// numbers, whose result must be NaN if an argument is NaN. For kAvg it returns the sum. Errors:
// InvalidArgument if libtorch does not support the reduction either. Thread-safe.
absl::StatusOr<MpiReduction> mpi_reduction(MpiRuntime& runtime, c10::ScalarType dtype, ReduceOp op);

// One message, to or from a rank of the communicator.
struct MpiMessage {
  MPI_Comm comm;
  bool sends = false;
  void* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;  // For a receive it may be MPI_ANY_SOURCE.
  int tag = 0;
};

// Begins the send or receive. MPI's counts are ints, so a message of more than `block` bytes is described as
// elements of `block` bytes.
absl::Status start(MpiRuntime& runtime, const MpiMessage& message, int64_t block, MPI_Request* request);

}  // namespace gradwire::collectives
