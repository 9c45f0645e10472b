#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/calls/rref.h"

// The functions and classes that Gradwire's calls in the bench use. handlers.cc registers them.
namespace gradwire::bench {

void nothing();
// Sleeps for the given time and returns it.
int64_t nap(int64_t microseconds);
// Returns the id of the process that serves this call.
int64_t process_id();
// Fetches the value of a reference and releases the reference.
at::Tensor fetch(const rpc::RRef<at::Tensor>& shared);
// Returns its argument.
at::Tensor echo(at::Tensor x);
// Increases the first element, and returns the tensor itself.
at::Tensor pass(at::Tensor x);
// Returns the sum of all elements.
double sum(const at::Tensor& x);
// Returns the resident parameter with this number of floats.
at::Tensor pull_resident(int64_t floats);

class ParameterServer {
 public:
  explicit ParameterServer(int64_t floats);
  void push(const at::Tensor& gradient);
  at::Tensor pull() const;

 private:
  at::Tensor parameters_;
};

// Returns the parameter server of the called worker.
rpc::RRef<ParameterServer> parameter_server();

}  // namespace gradwire::bench
