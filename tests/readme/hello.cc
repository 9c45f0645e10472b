#include <ATen/ATen.h>

#include <iostream>
#include <string>

#include "gradwire/autograd/autograd.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/launch_info.h"

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC(scale)  // from now on other workers may call it

int main() {
  const int rank = gradwire::LaunchInfo::from_env().rank;
  gradwire::rpc::init_rpc("worker" + std::to_string(rank));  // returns when all workers have joined
  if (rank == 0) {
    const at::Tensor x = at::full({}, 3.0).requires_grad_();
    gradwire::autograd::Context context;
    const at::Tensor y = gradwire::rpc::rpc_sync<&scale>("worker1", x, 2.0);  // runs on worker1
    gradwire::autograd::backward(context, {y * y});                           // to worker1 and back
    const at::Tensor gradient = gradwire::autograd::get_gradients(context).at(x);
    std::cout << "y = " << y.item<double>() << ", d(y*y)/dx = " << gradient.item<double>() << std::endl;
  }
  gradwire::rpc::shutdown();  // serves on until every worker is done
}
