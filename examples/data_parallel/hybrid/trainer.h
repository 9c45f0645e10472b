#pragma once

#include <cstdint>
#include <tuple>

#include "examples/data_parallel/hybrid/table.h"
#include "gradwire/collectives/world.h"
#include "gradwire/rpc/rref.h"

namespace gradwire::examples {

// Epochs, samples in a step, width of a row, of the hidden layer, learning rate.
using HybridOptions = std::tuple<int64_t, int64_t, int64_t, int64_t, double>;

// Of this process: the group over which the trainers replicate the dense part. Before the server calls.
void set_trainers(collectives::Group group);

// Runs on each trainer: learns the table and a dense network behind it, and returns the accuracy on the
// samples that were held out. Throws Error, Internal, when the trainers' dense parts differ at the end.
double train_hybrid(const rpc::RRef<TableImpl>& table, const HybridOptions& options);

}  // namespace gradwire::examples
