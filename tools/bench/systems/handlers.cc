#include "gradwire/tools/bench/systems/handlers.h"

#include <ATen/ops/full.h>
#include <unistd.h>

#include <memory>

#include "gradwire/base/mutex.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tools/bench/suites/flat_mlp.h"
#include "gradwire/tools/bench/suites/resident.h"

namespace gradwire::bench {

void nothing() {}

int64_t nap(int64_t microseconds) { return sleep_for(microseconds); }

int64_t process_id() { return getpid(); }

at::Tensor fetch(const rpc::RRef<at::Tensor>& shared) { return shared.to_here(); }

at::Tensor echo(at::Tensor x) { return x; }

at::Tensor pass(at::Tensor x) {
  x.mutable_data_ptr<float>()[0] += 1;
  return x;
}

double sum(const at::Tensor& x) { return sum_of(x).item<double>(); }

at::Tensor pull_resident(int64_t floats) { return resident_parameter(floats); }

ParameterServer::ParameterServer(int64_t floats) : parameters_(at::full({floats}, 0.5, at::kFloat)) {}

void ParameterServer::push(const at::Tensor& gradient) { parameters_.sub_(gradient); }

at::Tensor ParameterServer::pull() const { return parameters_; }

rpc::RRef<ParameterServer> parameter_server() {
  static Mutex mutex;
  static auto& server = *new rpc::RRef<ParameterServer>;
  const MutexLock lock(mutex);
  if (server.handle() == nullptr) {
    server =
        rpc::RRef<ParameterServer>(*rpc::Agent::current(), std::make_shared<ParameterServer>(kServerFloats));
  }
  return server;
}

GRADWIRE_RPC(nothing)
GRADWIRE_RPC(model_parameters)
GRADWIRE_RPC(apply_model_gradient)
GRADWIRE_RPC(nap)
GRADWIRE_RPC(process_id)
GRADWIRE_RPC(fetch)
GRADWIRE_RPC(echo)
GRADWIRE_RPC(pass)
GRADWIRE_RPC(sum)
GRADWIRE_RPC(pull_resident)
GRADWIRE_RPC(parameter_server)
GRADWIRE_RPC_CLASS(ParameterServer, int64_t)
GRADWIRE_RPC_METHOD(ParameterServer, push)
GRADWIRE_RPC_METHOD(ParameterServer, pull)

}  // namespace gradwire::bench
