#pragma once

#include <memory>

#include "gradwire/tools/bench/run/bench_process.h"

namespace gradwire::bench {

// torch::distributed::rpc::TensorPipeAgent, used from C++. In this order: the suites rpc and scale; the suite
// rref; its cases in which a worker is lost; the suite autograd.
std::unique_ptr<BenchProcess> make_torch_rpc();
std::unique_ptr<BenchProcess> make_torch_rref();
std::unique_ptr<BenchProcess> make_torch_loss();
std::unique_ptr<BenchProcess> make_torch_autograd();

}  // namespace gradwire::bench
