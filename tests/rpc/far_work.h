#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "gradwire/base/futures/future.h"
#include "gradwire/rpc/remote_module.h"

// The work that the processes of three_processes_test.cc and process_limits_test.cc do for each other, with
// libtorch.
namespace far_work {

using Linear = gradwire::rpc::RemoteModule<torch::nn::LinearImpl>;

// The result of a module, which may be on a third worker.
at::Tensor through(const Linear& module, const at::Tensor& x);

// The text of the status of rpc_barrier(names, timeout) on this worker. A negative `seconds` means no timeout
// of its own.
std::string meet(const std::vector<std::string>& names, double seconds);

// set_rpc_timeout() and get_rpc_timeout() of this worker, in seconds.
void set_timeout(double seconds);
double timeout();
// The text of the status of a call of until_cancelled() on `worker`, without a timeout of its own.
std::string wait_for(const std::string& worker);
// Ends when its caller gives up.
gradwire::Future<void> until_cancelled();

// Multiplies x here, and then on `worker`.
at::Tensor multiply(const at::Tensor& x, const std::string& worker);
at::Tensor multiply_here(const at::Tensor& x);

at::Tensor identity(const at::Tensor& x);

// Leaves this process without a free descriptor, until give_descriptors().
void take_descriptors();
void give_descriptors();
// Leaves this process only a few MiB of address space, until give_memory().
void take_memory();
void give_memory();

// Registers the TorchScript "far_work.far", which makes `x` twice as large on each of two workers. Must be
// called before the worker joins.
void register_scripts();

}  // namespace far_work
