#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/rpc/rref.h"

// What Gradwire's side of the bench calls: registered in handlers.cc.
namespace gradwire::bench {

// Sleeps, and returns how long.
int64_t nap(int64_t microseconds);
// The process that serves this call.
int64_t process_id();
// Fetches what is behind a reference that it did not have before, and lets go of it.
at::Tensor fetch(const rpc::RRef<at::Tensor>& shared);
// Returns what it received.
at::Tensor echo(at::Tensor x);
// Reads every element.
double sum(const at::Tensor& x);
// A resident parameter of this many floats.
at::Tensor pull_resident(int64_t floats);

class ParameterServer {
 public:
  explicit ParameterServer(int64_t floats);
  void push(const at::Tensor& gradient);
  at::Tensor pull() const;

 private:
  at::Tensor parameters_;
};

// The parameter server of the worker that is asked.
rpc::RRef<ParameterServer> parameter_server();

}  // namespace gradwire::bench
