#pragma once

#include <cstdint>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// Compares the cpu backend with Open MPI. Runs every operation, dtype and reduction with the same random
// tensors on two groups of the same ranks, one of each backend. Throws std::runtime_error if the results
// differ. Copies, and reductions whose result does not depend on the order, must be equal bit by bit; sums
// and products of floating numbers over more than two ranks may round differently. All ranks must call it,
// each in its own process.
void compare_groups(ProcessGroup& cpu, ProcessGroup& mpi, uint64_t seed);

}  // namespace gradwire::collectives
