#include "gradwire/tests/device/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/tests/device/copy.h"
#include "gradwire/tests/device/generator.h"
#include "gradwire/tests/device/kernel_arguments.h"
#include "gradwire/tests/device/raw_tensor.h"
#include "gradwire/tests/device/runtime.h"

namespace gradwire::lag {
namespace {

// Whether the shapes of results may depend on data. libtorch tags only some variants of an operator, so the
// tags of all variants count.
bool depends_on_data(const c10::OperatorHandle& op) {
  static const auto* const tagged = [] {
    auto* names = new std::set<std::string>();
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const std::optional<c10::OperatorHandle> found = dispatcher.findSchema(name);
      if (!found) continue;
      if (found->hasTag(at::Tag::dynamic_output_shape) || found->hasTag(at::Tag::data_dependent_output)) {
        names->insert(name.name);
      }
    }
    return names;
  }();
  return tagged->count(op.schema().name()) > 0;
}

// The result of an operator is known only later, but its shape must be known at once. The steps of one call:
//
//   1. Find the device, and check that all tensors are on it.
//   2. Run the operator of the Meta device, which computes shapes without data. Without such an operator,
//      run the operator of the CPU on zeros. Both give the shapes of the outputs.
//   3. Resize the tensors of `out=` arguments, and allocate the other outputs.
//   4. Put a kernel into the current stream. It runs the operator of the CPU on tensors over the memory of
//   the
//      device, and copies new results into the outputs.
//   5. Return the outputs, and for results that alias an argument, the argument.
//
// If the shape of an output depends on data, steps 2 to 4 are replaced: the host waits for the stream, runs
// the operator, and copies the results to the device. CUDA's operators wait in the same cases.
//
// If the shapes turn out wrong inside the kernel, the device is lost, so that no test goes on with wrong
// data.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack arguments)
      : op_(op), arguments_(std::move(arguments)), device_(find_device()) {}

  torch::jit::Stack run() {
    for (const c10::Argument& result : op_.schema().returns()) {
      TORCH_CHECK_NOT_IMPLEMENTED(result.alias_info() == nullptr || result.alias_info()->isWrite(), name(),
                                  " is a view, and has no kernel for devices of type lag");
    }
    const c10::DeviceGuard guard(torch_device(device_));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    check(accelerator().shared().status(device_));
    seed_ = draw();
    const KernelArguments captured(op_.schema(), arguments_, seed_);
    const std::optional<torch::jit::Stack> shapes = infer(captured);
    if (!shapes) return run_on_host(captured);
    for (size_t i = 0; i < arguments_.size(); i++) {
      if (written(i)) resize_written(arguments_[i], shaped_arguments_[i]);
    }
    torch::jit::Stack results = allocate_results(*shapes);
    launch(results);
    return results;
  }

 private:
  std::string name() const { return toString(op_.schema().operator_name()); }

  bool written(size_t argument) const {
    const c10::AliasInfo* alias = op_.schema().arguments()[argument].alias_info();
    return alias != nullptr && alias->isWrite();
  }

  // Step 1.
  int find_device() const {
    std::optional<int> device;
    for (const c10::IValue& argument : arguments_) {
      if (argument.isDevice() && !device) device = index_of(argument.toDevice());
      for (const at::Tensor& tensor : tensors_in(argument)) {
        if (tensor.device().is_cpu()) {
          // As for CUDA: numbers, and lists of indices.
          TORCH_CHECK(tensor.dim() == 0 || argument.isOptionalTensorList(), name(),
                      ": all tensors must be on one device, but one is on the cpu");
          continue;
        }
        const int index = index_of(tensor.device());
        TORCH_CHECK(!device || *device == index, name(),
                    ": all tensors must be on one device, got lag:", device.value_or(0), " and lag:", index);
        device = index;
      }
    }
    return device.value_or(current_device());
  }

  // A seed for the kernel, if the operator makes random numbers.
  uint64_t draw() const {
    for (size_t i = 0; i < arguments_.size(); i++) {
      if (op_.schema().arguments()[i].name() != "generator") continue;
      return draw_seed(arguments_[i].isNone() ? default_generator(device_) : arguments_[i].toGenerator());
    }
    return 0;
  }

  // Step 2. Nothing if the shapes depend on data.
  std::optional<torch::jit::Stack> infer(const KernelArguments& captured) {
    bool wrong = false;
    if (op_.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
      try {
        shaped_arguments_ = captured.without_data();
        torch::jit::Stack stack = shaped_arguments_;
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
        return stack;
      } catch (const c10::NotImplementedError&) {
        // A part of the operator has no kernel for Meta.
      } catch (const c10::Error&) {
        wrong = true;
      }
    }
    if (depends_on_data(op_)) return std::nullopt;
    try {
      shaped_arguments_ = captured.with_zeros();
      torch::jit::Stack stack = shaped_arguments_;
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
      return stack;
    } catch (const c10::Error&) {
      // Both found a wrong argument. Otherwise the operator may dislike zeros.
      if (wrong) throw;
      return std::nullopt;
    }
  }

  // Step 3.
  static void resize_written(const c10::IValue& argument, const c10::IValue& shaped) {
    const std::vector<at::Tensor> tensors = tensors_in(argument);
    const std::vector<at::Tensor> shapes = tensors_in(shaped);
    for (size_t i = 0; i < tensors.size(); i++) {
      if (tensors[i].sizes() == shapes[i].sizes() && tensors[i].strides() == shapes[i].strides()) continue;
      tensors[i].resize_(shapes[i].sizes());
      tensors[i].unsafeGetTensorImpl()->set_sizes_and_strides(shapes[i].sizes(), shapes[i].strides(),
                                                              tensors[i].storage_offset());
    }
  }

  // The results with shapes, each replaced by a new tensor of the device, or by the argument that it aliases.
  torch::jit::Stack allocate_results(const torch::jit::Stack& shapes) const {
    torch::jit::Stack results;
    for (size_t i = 0; i < shapes.size(); i++) {
      if (const std::optional<size_t> aliased = aliased_argument(i)) {
        results.push_back(arguments_[*aliased]);
        continue;
      }
      results.push_back(map_tensors(shapes[i], [this](const at::Tensor& shape) {
        return at::empty_strided(shape.sizes(), shape.strides(),
                                 shape.options().device(torch_device(device_)));
      }));
    }
    return results;
  }

  // The argument that the result aliases, if any.
  std::optional<size_t> aliased_argument(size_t result) const {
    const c10::AliasInfo* alias = op_.schema().returns()[result].alias_info();
    if (alias == nullptr) return std::nullopt;
    for (size_t i = 0; i < arguments_.size(); i++) {
      const c10::AliasInfo* other = op_.schema().arguments()[i].alias_info();
      if (other != nullptr && *other == *alias) return i;
    }
    TORCH_CHECK(false, name(), ": the schema has a result that aliases no argument");
  }

  // A result of the kernel that must be copied to a new tensor.
  struct Output {
    size_t result = 0;
    std::vector<RawTensor> tensors;
  };

  // Step 4.
  void launch(const torch::jit::Stack& results) {
    std::vector<Output> outputs;
    for (size_t i = 0; i < results.size(); i++) {
      if (op_.schema().returns()[i].alias_info() != nullptr) continue;
      Output output{.result = i};
      for (const at::Tensor& tensor : tensors_in(results[i])) output.tensors.emplace_back(tensor);
      outputs.push_back(std::move(output));
    }
    // Captured again: step 3 may have changed the shapes of arguments.
    auto arguments = std::make_shared<KernelArguments>(op_.schema(), arguments_, seed_);
    check(current_stream(device_).launch([op = op_, arguments, outputs = std::move(outputs)] {
      try {
        run_kernel(op, *arguments, outputs);
      } catch (const c10::Error& error) {
        // Without the backtrace, which would fill every later error of the device.
        throw std::runtime_error(toString(op.schema().operator_name()) + ": " +
                                 error.what_without_backtrace());
      }
    }));
  }

  static void run_kernel(const c10::OperatorHandle& op, const KernelArguments& arguments,
                         const std::vector<Output>& outputs) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const torch::jit::Stack used = arguments.over_memory();
    torch::jit::Stack stack = used;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    TORCH_CHECK(arguments.same_shapes(used), "the shape of an output depends on data");
    RawTensors tensors(c10::DispatchKey::CPU);
    for (const Output& output : outputs) {
      const std::vector<at::Tensor> computed = tensors_in(stack[output.result]);
      TORCH_CHECK(computed.size() == output.tensors.size(), toString(op.schema().operator_name()), ": got ",
                  computed.size(), " tensors as a result, expected ", output.tensors.size());
      for (size_t i = 0; i < computed.size(); i++) {
        const at::Tensor to = tensors.make(output.tensors[i]);
        TORCH_CHECK(to.sizes() == computed[i].sizes() && to.dtype() == computed[i].dtype(),
                    toString(op.schema().operator_name()), ": got a result of shape ", computed[i].sizes(),
                    " and type ", computed[i].dtype(), ", expected ", to.sizes(), " and ", to.dtype());
        to.copy_(computed[i]);
      }
    }
  }

  // For shapes that depend on data.
  torch::jit::Stack run_on_host(const KernelArguments& captured) {
    check(current_stream(device_).synchronize(name()));
    const torch::jit::Stack used = captured.with_copies_of_written();
    torch::jit::Stack results = used;
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &results);
    for (size_t i = 0; i < used.size(); i++) {
      if (!written(i)) continue;
      resize_written(arguments_[i], used[i]);
      copy_all(used[i], arguments_[i]);
    }
    torch::jit::Stack moved = allocate_results(results);
    for (size_t i = 0; i < results.size(); i++) {
      if (op_.schema().returns()[i].alias_info() == nullptr) copy_all(results[i], moved[i]);
    }
    return moved;
  }

  static void copy_all(const c10::IValue& from, const c10::IValue& to) {
    const std::vector<at::Tensor> sources = tensors_in(from);
    const std::vector<at::Tensor> destinations = tensors_in(to);
    // The copy takes the bytes at once, because the memory of the results is not pinned.
    for (size_t i = 0; i < sources.size(); i++)
      copy_tensor(sources[i], destinations[i], /*non_blocking=*/true);
  }

  const c10::OperatorHandle& op_;
  const torch::jit::Stack arguments_;
  const int device_;
  uint64_t seed_ = 0;
  // The arguments with which the shapes were computed.
  torch::jit::Stack shaped_arguments_;
};

}  // namespace

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  torch::jit::Stack arguments(std::make_move_iterator(stack->end() - static_cast<std::ptrdiff_t>(count)),
                              std::make_move_iterator(stack->end()));
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : run_on_device(op, std::move(arguments))) stack->push_back(std::move(result));
}

torch::jit::Stack run_on_device(const c10::OperatorHandle& op, torch::jit::Stack arguments) {
  return Call(op, std::move(arguments)).run();
}

}  // namespace gradwire::lag
