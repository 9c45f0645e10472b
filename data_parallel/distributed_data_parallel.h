#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "gradwire/data_parallel/hooks/comm_hook.h"
#include "gradwire/data_parallel/join/join.h"
#include "gradwire/data_parallel/module_reducer.h"
#include "gradwire/data_parallel/reducer/reducer_join.h"
#include "gradwire/data_parallel/sync_batch_norm/own_collectives.h"
#include "gradwire/device/tensors_in.h"

namespace gradwire::data_parallel {

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

// While it exists, backward passes accumulate gradients on this rank only, without averaging.
class [[nodiscard]] NoSyncGuard {
 public:
  // Called by DistributedDataParallel::no_sync(). The reducer must outlive the guard.
  explicit NoSyncGuard(Reducer& reducer) : reducer_(reducer) { reducer_.begin_no_sync(); }
  ~NoSyncGuard() { reducer_.end_no_sync(); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  Reducer& reducer_;
};

// A replica of a module on each rank of a group. Each rank trains its replica on its own share of the data.
// The parameters and buffers start with the values of the first rank. After each backward pass `.grad` holds
// the average of all ranks' gradients, with the same bits on every rank. The averaging runs while the
// backward pass still runs. M: the holder or the Impl of a torch::nn module. The module is trained in place:
// the caller's handle stays valid, and parameters() returns the module's own parameters.
//
// All ranks must do the same in the same order: construct it, call forward in training with gradients, run
// backward. backward returns when all gradients are averaged. Gradients that were accumulated before without
// averaging (no_sync) are included in the average. With retain_graph, backward can run again for the same
// forward; the gradients add up.
//
// Unused parameters: without find_unused_parameters, forward throws Error with FailedPrecondition after a
// backward pass that did not reach every parameter; the message names the parameters that it did not reach.
// With find_unused_parameters, a parameter that no rank used keeps its gradient; a parameter that only other
// ranks used gets the average.
//
// Sparse gradients (torch::nn::Embedding with the option sparse) stay sparse: `.grad` holds the coalesced
// average.
//
// Errors: backward throws Error: InvalidArgument for create_graph, and for a sparse gradient of a parameter
// that was not expected to have one (DistributedDataParallelOptions::sparse_parameters); Unavailable,
// DeadlineExceeded or Aborted if another rank is gone. After one of the last three, a new group must be made.
//
// In an autograd Context (//autograd), backward(context, …) stores the averages in the context and does not
// change `.grad`.
//
// While it exists, parameters must not be replaced or moved, and their requires_grad must not change. Used by
// one thread; not copyable.
//
//   DistributedDataParallel model(net);
//   model.forward(batch).sum().backward();
//   optimizer.step();
template <class M>
class DistributedDataParallel : public torch::nn::Module, public Joinable {
 public:
  // The module's class.
  using Impl = typename data_parallel_internal::ImplOf<M>::type;
  static_assert(std::is_base_of_v<torch::nn::Module, Impl>,
                "DistributedDataParallel takes a torch::nn module");

  // All ranks of the group must call it. Throws Error: InvalidArgument if the ranks' modules or options
  // differ (the message names the rank and the parameter), or if no parameter requires grad;
  // FailedPrecondition if no group is given and there is no world; the group's errors.
  explicit DistributedDataParallel(std::shared_ptr<Impl> module,
                                   const DistributedDataParallelOptions& options = {})
      : torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", std::move(module))),
        input_move_{.device = input_device(*module_, options), .float_dtype = input_dtype(options)},
        output_device_(options.output_device),
        reducer_(make_reducer(*module_, options)) {}
  // As above, with a module's holder.
  template <class Holder>
  requires std::is_same_v<typename Holder::ContainedType, Impl>
  explicit DistributedDataParallel(const Holder& module, const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(module.ptr(), options) {}

  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // Runs the module's forward. In training with gradients it may communicate before that: it broadcasts the
  // buffers.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    LowPrecisionScope scope = reducer_->before_forward(module_->is_training());
    if (input_move_.device.has_value() || input_move_.float_dtype.has_value()) {
      return after(scope,
                   module_->forward(device::moved_as(std::forward<Arguments>(arguments), input_move_)...));
    }
    return after(scope, module_->forward(std::forward<Arguments>(arguments)...));
  }
  // As forward.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  // Accumulates the gradients of several batches; the next backward pass after the guard's end averages their
  // sum.
  //   { auto guard = model.no_sync(); model.forward(first).sum().backward(); }
  //   model.forward(second).sum().backward();
  NoSyncGuard no_sync() { return NoSyncGuard(*reducer_); }

  // Replaces the average of the gradients (hooks/comm_hook.h, hooks/stock_hooks.h). All ranks must register
  // the same hook, before their first forward in training. Sparse gradients and delayed parameters are
  // averaged without the hook. Throws Error with FailedPrecondition if there is a hook already.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { reducer_->set_comm_hook(std::move(hook)); }
  // As above, with a function and the state that it gets: hook(state, bucket) returns a HookStep, a Future of
  // a tensor or a tensor.
  template <class State, class Hook>
  void register_comm_hook(State state, Hook hook) {
    register_comm_hook(
        make_comm_hook([state = std::move(state), hook = std::move(hook)](
                           GradBucket& bucket) mutable -> HookStep { return hook(state, bucket); }));
  }

  // Allows that the ranks have different numbers of batches; see Join. The replica must outlive the result.
  // Throws the errors of Join's constructor.
  //   {
  //     Join join = model.join();
  //     for (const Batch& batch : batches) { model.forward(batch.x)...; optimizer.step(); }
  //   }
  Join join(const JoinOptions& options = {}) { return Join({this}, options); }
  // Called by Join.
  const std::shared_ptr<collectives::ProcessGroup>& join_group() const override { return reducer_->group(); }
  // Called by Join.
  void check_join() const override { refuse_own_collectives(*module_); }
  // Called by Join.
  at::Device join_device() const override { return parameter_device(*module_); }
  // Called by Join.
  std::unique_ptr<JoinHook> join_hook() override { return std::make_unique<ReducerJoinHook>(*reducer_); }
  // Called by Join.
  void set_join_notifier(JoinNotifier* notifier) override { reducer_->set_join(notifier); }

  // The caller's module, which is trained in place.
  const std::shared_ptr<Impl>& module() const { return module_; }
  // The object that averages the gradients; gives access to its buckets.
  const Reducer& reducer() const { return *reducer_; }

 private:
  template <class Output>
  Output after(LowPrecisionScope& scope, Output output) {
    std::vector<at::Tensor> tensors;
    device::collect_tensors(output, tensors);
    reducer_->after_forward(scope, tensors);
    if constexpr (device::kHoldsTensors<Output>) {
      if (output_device_.has_value()) return device::on_device(std::move(output), *output_device_);
    }
    return output;
  }

  const std::shared_ptr<Impl> module_;
  const device::Move input_move_;
  const std::optional<at::Device> output_device_;
  const std::unique_ptr<Reducer> reducer_;
};

// Deduces M from a pointer to a module.
template <class Impl>
DistributedDataParallel(std::shared_ptr<Impl>, const DistributedDataParallelOptions& = {})
    -> DistributedDataParallel<Impl>;
// Deduces M from a module's holder.
template <class Holder>
requires requires { typename Holder::ContainedType; }
DistributedDataParallel(Holder, const DistributedDataParallelOptions& = {})->DistributedDataParallel<Holder>;

}  // namespace gradwire::data_parallel

// These names had this namespace before.
namespace gradwire::collectives {
using data_parallel::DistributedDataParallel;
using data_parallel::NoSyncGuard;
}  // namespace gradwire::collectives
