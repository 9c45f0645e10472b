#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/collectives/mpi/mpi_runtime.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// How MPI combines elements.
struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op;
};

// MPI's own type and operation for a dtype where they mean what libtorch's do, else one of ours that calls
// libtorch (half, bfloat16, bool; minimum and maximum of floats, of which NaN must be the result where it is
// an argument). kAvg is the sum. InvalidArgument where libtorch cannot do it either. Thread-safe.
absl::StatusOr<MpiReduction> mpi_reduction(MpiRuntime& runtime, c10::ScalarType dtype, ReduceOp op);

// One message, to or from a rank of the communicator.
struct MpiMessage {
  MPI_Comm comm;
  bool sends = false;
  void* data = nullptr;
  int64_t bytes = 0;
  int peer = 0;  // of a receive also MPI_ANY_SOURCE
  int tag = 0;
};

// Begins it. MPI counts with an int: more than `block` bytes are sent in elements of `block` bytes.
absl::Status start(MpiRuntime& runtime, const MpiMessage& message, int64_t block, MPI_Request* request);

}  // namespace gradwire::collectives
