// A worker that serves a small model. call_model.py calls it through a gateway. Start, in this order:
//
//   bazel run //tools:launch -- --standalone --nproc_per_node=2
//       bazel-bin/clients/python/examples/model_worker tcp://localhost:7600
//   bazel run //tools/gateway -- --init_method=tcp://localhost:7600 --allow_operators=aten::add
//   clients/python/examples/call_model.py localhost:7700

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <pthread.h>
#include <signal.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/init_rpc.h"
#include "gradwire/rpc/options.h"
#include "gradwire/rpc/registration.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/tools/launch_info.h"

namespace model {

at::Tensor scale(const at::Tensor& x, double by) { return x * by; }
GRADWIRE_RPC_IDEMPOTENT(scale)

// The first n powers of x, one after the other: made only as fast as the client reads them.
gradwire::rpc::Stream<at::Tensor> powers(at::Tensor x, int64_t n) {
  at::Tensor power = x;
  for (int64_t i = 0; i < n; ++i, power = power * x) co_yield power;
}
GRADWIRE_RPC(powers)

// A perceptron with one hidden layer. It is registered below, so clients create objects of it.
class Classifier : public torch::nn::Module {
 public:
  Classifier(int64_t features, int64_t hidden, int64_t classes)
      : first_(register_module("first", torch::nn::Linear(features, hidden))),
        second_(register_module("second", torch::nn::Linear(hidden, classes))) {}

  // float [n, features] -> scores, float [n, classes]
  at::Tensor scores(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return forward(x);
  }

  // float [n, features], int64 [n] -> loss. Makes one step of gradient descent.
  double fit(const at::Tensor& x, const at::Tensor& labels, double learning_rate) {
    if (x.size(0) != labels.size(0)) throw std::invalid_argument("fit: x and labels differ in their length");
    const at::Tensor loss = at::cross_entropy_loss(forward(x), labels);
    zero_grad();
    loss.backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) parameter.sub_(parameter.grad(), learning_rate);
    return loss.item<double>();
  }

 private:
  at::Tensor forward(const at::Tensor& x) { return second_(first_(x).relu()); }

  torch::nn::Linear first_;
  torch::nn::Linear second_;
};

// One method of an object at a time runs, because a step changes the parameters.
GRADWIRE_RPC_SERIAL_CLASS(Classifier, int64_t, int64_t, int64_t)
GRADWIRE_RPC_METHOD(Classifier, scores)
GRADWIRE_RPC_METHOD(Classifier, fit)

}  // namespace model

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: model_worker INIT_METHOD, for example tcp://localhost:7600\n");
    return 2;
  }
  // Before any thread starts, so that all threads inherit it and only sigwait() takes these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  try {
    gradwire::rpc::RpcBackendOptions options;
    options.init_method = argv[1];
    // The world size 0 makes an open group: the gateway may join it at any time, and leave it.
    const std::string name = gradwire::LaunchInfo::from_env().name();
    gradwire::rpc::init_rpc(name, /*rank=*/-1, /*world_size=*/0, options);
    std::printf("%s serves\n", name.c_str());
    std::fflush(stdout);
    int signal = 0;
    sigwait(&signals, &signal);
    gradwire::rpc::shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_worker: %s\n", error.what());
    return 1;
  }
}
