#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include "gradwire/data_parallel/reducer.h"

namespace gradwire::collectives {

// On the nodes that accumulate the parameters' gradients. Before: for passes whose gradients do not go to `.grad`.
class Reducer::PreHook : public torch::autograd::FunctionPreHook {
 public:
  PreHook(Reducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
  const Reducer& reducer() const { return reducer_; }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    return reducer_.before_accumulation(index_, gradients);
  }

 private:
  Reducer& reducer_;
  const std::size_t index_;
};

// After: `.grad` has the gradient.
class Reducer::PostHook : public torch::autograd::FunctionPostHook {
 public:
  PostHook(Reducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}
  const Reducer& reducer() const { return reducer_; }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    reducer_.accumulated(index_);
    return outputs;
  }

 private:
  Reducer& reducer_;
  const std::size_t index_;
};

}  // namespace gradwire::collectives
