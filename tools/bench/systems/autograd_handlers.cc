#include "gradwire/tools/bench/systems/autograd_handlers.h"

#include "gradwire/rpc/rpc.h"

namespace gradwire::bench {

at::Tensor add_along(const at::Tensor& x, const at::Tensor& y, int64_t additions) {
  const at::Tensor sum = x.add(y);
  if (additions <= 1) return sum;
  const rpc::Destination next(rpc::Agent::current()->get_worker_info().id + 1);
  return rpc::rpc_sync<&add_along>(next, sum, y, additions - 1);
}

std::vector<rpc::RRef<at::Tensor>> MlpServer::parameters() const {
  std::vector<rpc::RRef<at::Tensor>> references;
  for (const at::Tensor& parameter : layer_.parameters()) references.emplace_back(parameter);
  return references;
}

GRADWIRE_RPC(add_along)
GRADWIRE_RPC_CLASS(MlpServer, int64_t)
GRADWIRE_RPC_METHOD(MlpServer, forward)
GRADWIRE_RPC_METHOD(MlpServer, parameters)

}  // namespace gradwire::bench
