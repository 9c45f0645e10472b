#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/data_parallel/module_reducer.h"
#include "gradwire/data_parallel/tensors_in.h"

namespace gradwire::collectives {

namespace data_parallel_internal {

template <class M>
struct ImplOf {
  using type = M;
};
template <class M>
requires requires { typename M::ContainedType; }
struct ImplOf<M> {
  using type = typename M::ContainedType;
};

}  // namespace data_parallel_internal

// Backward passes accumulate on this rank alone while it lives.
class [[nodiscard]] NoSyncGuard {
 public:
  // For DistributedDataParallel::no_sync(). The reducer outlives the guard.
  explicit NoSyncGuard(Reducer& reducer) : reducer_(reducer) { reducer_.begin_no_sync(); }
  ~NoSyncGuard() { reducer_.end_no_sync(); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  Reducer& reducer_;
};

// A replica of a module on each rank of a group, every one trained on its own share of the data: the
// parameters and buffers start as the first rank's, and each backward pass leaves the average of all ranks'
// gradients in `.grad`, on every rank the same bits. The averaging runs beside the backward pass. M: a
// torch::nn module, by its holder or its Impl; it is trained in place, so its own handle stays good, and
// parameters() here are its own.
//
// All ranks do the same in the same order: make it, call forward in training and with gradients, run
// backward. backward returns when all gradients are averaged. What had been accumulated before without
// (no_sync) is averaged too. It can be called again for the same forward with retain_graph; the gradients add
// up.
//
// forward throws Error, FailedPrecondition, after a backward pass that did not reach every parameter (those
// are named; without find_unused_parameters). With find_unused_parameters one that no rank used keeps its
// gradient as it was, one that only others used gets the average all the same. backward throws Error:
// InvalidArgument for sparse gradients and for create_graph, Unavailable, DeadlineExceeded or Aborted when
// another rank is gone; after that nothing works but to make the group anew.
//
// In an autograd Context (//autograd) backward(context, …) leaves the averages in the context, and `.grad`
// alone.
//
// Parameters must not be replaced or moved, nor change requires_grad, while it lives. Used by one thread; not
// copyable.
//
//   DistributedDataParallel model(net);
//   model.forward(batch).sum().backward();
//   optimizer.step();
template <class M>
class DistributedDataParallel : public torch::nn::Module {
 public:
  // The module's class.
  using Impl = typename data_parallel_internal::ImplOf<M>::type;
  static_assert(std::is_base_of_v<torch::nn::Module, Impl>,
                "DistributedDataParallel takes a torch::nn module");

  // Entered by all ranks of the group. Throws Error: InvalidArgument when the ranks' modules or options
  // differ (names the rank and the parameter), or no parameter requires grad; FailedPrecondition without a
  // world; what the group throws.
  explicit DistributedDataParallel(std::shared_ptr<Impl> module,
                                   const DistributedDataParallelOptions& options = {})
      : torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", std::move(module))),
        input_device_(input_device(options)),
        output_device_(options.output_device),
        reducer_(make_reducer(*module_, options)) {}
  // A holder.
  template <class Holder>
  requires std::is_same_v<typename Holder::ContainedType, Impl>
  explicit DistributedDataParallel(const Holder& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), options) {}

  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // The module's forward. With gradients in training it may communicate: first the buffers are broadcast.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    reducer_->before_forward(module_->is_training());
    if (input_device_.has_value()) {
      return after(module_->forward(on_device(std::forward<Arguments>(arguments), *input_device_)...));
    }
    return after(module_->forward(std::forward<Arguments>(arguments)...));
  }
  // As forward.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // For gradients of several batches: the next backward pass after it averages them all.
  //   { auto guard = model.no_sync(); model.forward(first).sum().backward(); }
  //   model.forward(second).sum().backward();
  NoSyncGuard no_sync() { return NoSyncGuard(*reducer_); }

  // The module that was given, which is trained in place.
  const std::shared_ptr<Impl>& module() const { return module_; }
  // What averages the gradients: for looking at its buckets.
  const Reducer& reducer() const { return *reducer_; }

 private:
  template <class Output>
  Output after(Output output) {
    std::vector<at::Tensor> tensors;
    collect_tensors(output, tensors);
    reducer_->after_forward(tensors);
    if constexpr (std::is_same_v<Output, at::Tensor>) {
      if (output_device_.has_value()) return output.to(*output_device_);
    }
    return output;
  }

  const std::shared_ptr<Impl> module_;
  const std::optional<at::Device> input_device_;
  const std::optional<at::Device> output_device_;
  const std::unique_ptr<Reducer> reducer_;
};

// M from a pointer to a module.
template <class Impl>
DistributedDataParallel(std::shared_ptr<Impl>, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<Impl>;
// M from a module's holder.
template <class Holder>
requires requires { typename Holder::ContainedType; }
DistributedDataParallel(Holder, const DistributedDataParallelOptions& = {})->DistributedDataParallel<Holder>;

}  // namespace gradwire::collectives
