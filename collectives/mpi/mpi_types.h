#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "gradwire/collectives/mpi/mpi_runtime.h"
#include "gradwire/collectives/reduce_op.h"

namespace gradwire::collectives {

// How MPI combines elements.
struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op;
};

// Of a dtype: MPI's own type and operation where they mean what libtorch's do, else one of ours that calls libtorch (half,
// bfloat16, bool; minimum and maximum of floats, of which NaN must be the result where it is an argument). kAvg is the
// sum. InvalidArgument where libtorch cannot do it either. Thread-safe.
absl::StatusOr<MpiReduction> mpi_reduction(MpiRuntime& runtime, c10::ScalarType dtype, ReduceOp op);

// `bytes` bytes as one message, in elements of `block` bytes where there are more than that: MPI counts with an int.
class MpiMessage {
 public:
  static absl::StatusOr<MpiMessage> make(MpiRuntime& runtime, int64_t bytes, int64_t block);
  ~MpiMessage();
  MpiMessage(MpiMessage&& other) noexcept;
  MpiMessage& operator=(MpiMessage&&) = delete;

  int count() const { return count_; }
  // May go when the call that uses it has begun.
  MPI_Datatype type() const { return type_; }

 private:
  MpiMessage(MpiRuntime& runtime, int count, MPI_Datatype type, bool owned)
      : runtime_(&runtime), count_(count), type_(type), owned_(owned) {}

  MpiRuntime* runtime_;
  int count_;
  MPI_Datatype type_;
  bool owned_;
};

}  // namespace gradwire::collectives
