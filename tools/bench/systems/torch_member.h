#pragma once

#include <memory>

#include "gradwire/tools/bench/run/participant.h"

namespace gradwire::bench {

// torch::distributed::rpc::TensorPipeAgent, from C++: the suites rpc and scale; its RRefs; a worker that is
// lost; its distributed autograd.
std::unique_ptr<Participant> make_torch_rpc();
std::unique_ptr<Participant> make_torch_rref();
std::unique_ptr<Participant> make_torch_loss();
std::unique_ptr<Participant> make_torch_autograd();

}  // namespace gradwire::bench
