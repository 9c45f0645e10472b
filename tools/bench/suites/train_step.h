#pragma once

#include "gradwire/tools/bench/suites/tensor_rpc.h"

namespace gradwire::bench {

// Trains the model of flat_mlp.h, together with the other trainers: each step pulls the parameters from
// worker `server`, computes the gradient on this thread, and pushes it. The processor time of the computation
// is the bench's own. Throws std::runtime_error if the parameters do not change or the loss is larger than
// that of the initial parameters.
Measurement run_train_step(TensorRpc& rpc, int server, const Task& task);

}  // namespace gradwire::bench
