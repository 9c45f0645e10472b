#pragma once

#include <cstdint>

#include "gradwire/collectives/process_group.h"

namespace gradwire::collectives {

// Gives two groups of the same ranks, of the cpu backend and of Open MPI's, the same random tensors for every
// operation, dtype and reduction, and throws std::runtime_error where they differ. Copies, and reductions
// whose order makes no difference, must be the same bits; sums and products of floats over more than two
// ranks may round differently. Called by all ranks, each a process of its own.
void compare_groups(ProcessGroup& cpu, ProcessGroup& mpi, uint64_t seed);

}  // namespace gradwire::collectives
