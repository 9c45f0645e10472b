#pragma once

#include <cstdint>
#include <tuple>

#include "examples/data_parallel/hybrid/table.h"
#include "gradwire/collectives/world.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::examples {

// Number of epochs, samples in a step, width of a row, width of the hidden layer, learning rate.
using HybridOptions = std::tuple<int64_t, int64_t, int64_t, int64_t, double>;

// Sets the group of this process, over which the trainers replicate the dense part. Must be called before the
// server's call arrives.
void set_trainers(collectives::Group group);

// Runs on each trainer. Trains the table and a dense network behind it, and returns the accuracy on the
// held-out samples. Throws Error with Internal if the trainers' dense parts differ at the end.
double train_hybrid(const rpc::RRef<TableImpl>& table, const HybridOptions& options);

}  // namespace gradwire::examples
