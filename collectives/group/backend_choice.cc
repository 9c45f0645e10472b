#include "gradwire/collectives/group/backend_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

struct WorldStates {
  std::shared_ptr<void> cpu;
  std::shared_ptr<void> cuda;
};

// Sends each operation to the backend for the device of its tensors. Both backends belong to one group and
// have the same members.
class TwoBackends : public GroupBackend {
 public:
  TwoBackends(std::unique_ptr<GroupBackend> cpu, std::unique_ptr<GroupBackend> cuda)
      : cpu_(std::move(cpu)), cuda_(std::move(cuda)) {}

  absl::Status broadcast(at::Tensor tensor, int root, absl::Time deadline) override {
    return of(tensor).broadcast(std::move(tensor), root, deadline);
  }
  absl::Status reduce(at::Tensor tensor, int root, const Reduction& op, absl::Time deadline) override {
    return of(tensor).reduce(std::move(tensor), root, op, deadline);
  }
  absl::Status all_reduce(at::Tensor tensor, const Reduction& op, absl::Time deadline) override {
    return of(tensor).all_reduce(std::move(tensor), op, deadline);
  }
  absl::Status gather(at::Tensor tensor, Tensors outputs, int root, absl::Time deadline) override {
    return of(tensor).gather(std::move(tensor), std::move(outputs), root, deadline);
  }
  absl::Status all_gather(at::Tensor tensor, Tensors outputs, absl::Time deadline) override {
    return of(tensor).all_gather(std::move(tensor), std::move(outputs), deadline);
  }
  absl::Status scatter(at::Tensor tensor, Tensors inputs, int root, absl::Time deadline) override {
    return of(tensor).scatter(std::move(tensor), std::move(inputs), root, deadline);
  }
  absl::Status reduce_scatter(at::Tensor output, Tensors inputs, const Reduction& op,
                              absl::Time deadline) override {
    return of(output).reduce_scatter(std::move(output), std::move(inputs), op, deadline);
  }
  absl::Status all_to_all(Tensors outputs, Tensors inputs, absl::Time deadline) override {
    return of(outputs.front()).all_to_all(std::move(outputs), std::move(inputs), deadline);
  }
  absl::Status all_gather_into_tensor(at::Tensor output, at::Tensor input, int size,
                                      absl::Time deadline) override {
    return of(output).all_gather_into_tensor(std::move(output), std::move(input), size, deadline);
  }
  absl::Status reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op, int size,
                                     absl::Time deadline) override {
    return of(output).reduce_scatter_tensor(std::move(output), std::move(input), op, size, deadline);
  }
  absl::Status all_to_all_single(at::Tensor output, at::Tensor input,
                                 const std::vector<int64_t>& output_splits,
                                 const std::vector<int64_t>& input_splits, absl::Time deadline) override {
    return of(output).all_to_all_single(std::move(output), std::move(input), output_splits, input_splits,
                                        deadline);
  }
  absl::Status barrier(absl::Time deadline) override { return use(*cpu_).barrier(deadline); }
  // The caller names devices if the barrier is to wait for them.
  absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) override {
    return use(device_ids.empty() ? *cpu_ : *cuda_).barrier_on(device_ids, deadline);
  }
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override {
    return of(tensor).send(std::move(tensor), dst, tag, deadline);
  }
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    return of(tensor).receive(std::move(tensor), src, tag, deadline);
  }
  void abort(const absl::Status& reason) override {
    cpu_->abort(reason);
    cuda_->abort(reason);
  }
  std::unique_ptr<Enqueued> take_enqueued() override {
    // The thread may have used another group since. Then nothing was enqueued for this one.
    const bool mine = last_ == cpu_.get() || last_ == cuda_.get();
    return mine ? last_->take_enqueued() : nullptr;
  }
  MultiDevice* multi_device() override {
    last_ = cuda_.get();
    return cuda_->multi_device();
  }
  std::shared_ptr<void> world_state() override {
    return std::make_shared<WorldStates>(WorldStates{cpu_->world_state(), cuda_->world_state()});
  }

 private:
  GroupBackend& use(GroupBackend& backend) {
    last_ = &backend;
    return backend;
  }
  // The backend for a tensor. In `of(tensor).broadcast(std::move(tensor), ...)` C++17 evaluates `of(tensor)`
  // before the arguments, so the tensor has not been moved away yet.
  GroupBackend& of(const at::Tensor& tensor) { return use(tensor.is_cpu() ? *cpu_ : *cuda_); }

  const std::unique_ptr<GroupBackend> cpu_;
  const std::unique_ptr<GroupBackend> cuda_;
  // The backend that the calling thread used last; take_enqueued(), called right after an operation, needs
  // it.
  static thread_local GroupBackend* last_;
};

thread_local GroupBackend* TwoBackends::last_ = nullptr;

}  // namespace

absl::StatusOr<BackendChoice> choose_backend(const std::string& name) {
  if (name.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(const Backend cpu, find_backend_name("cpu"));
    return BackendChoice{cpu, is_nccl_available()};
  }
  GRADWIRE_ASSIGN_OR_RETURN(const Backend kind, find_backend_name(name));
  return BackendChoice{kind, false};
}

std::string to_string(const BackendChoice& choice) {
  return absl::StrCat(to_string(choice.kind), choice.with_nccl ? " and nccl" : "");
}

absl::StatusOr<std::unique_ptr<GroupBackend>> make_backend(const BackendChoice& choice,
                                                           const BackendContext& context) {
  if (!choice.with_nccl) return find_backend(choice.kind)->make(context);
  const auto states = std::static_pointer_cast<WorldStates>(context.world_state);
  BackendContext of_cpu = context;
  of_cpu.world_state = states == nullptr ? nullptr : states->cpu;
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<GroupBackend> cpu, find_backend(Backend::kCpu)->make(of_cpu));
  BackendContext of_cuda = context;
  of_cuda.world_state = states == nullptr ? nullptr : states->cuda;
  // The options belong to the cpu backend. To give options to nccl, the user must name "nccl" as the backend.
  of_cuda.options.clear();
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<GroupBackend> cuda, find_backend(Backend::kNccl)->make(of_cuda));
  return combine_backends(std::move(cpu), std::move(cuda));
}

// Sets the devices whose tensors the group accepts. Returns whether CUDA tensors are staged through the host.
// They are if the user chose the cpu backend alone in a program that was built with CUDA.
bool describe_devices(const BackendChoice& choice, ArgumentChecks::Group& group) {
  group.backend = choice.kind;
  group.takes_cpu = choice.kind != Backend::kNccl;
  const auto takes_cuda = find_backend(choice.kind)->takes_cuda;
  const bool own = takes_cuda != nullptr ? takes_cuda() : choice.kind == Backend::kNccl || choice.with_nccl;
  const bool staged = choice.kind == Backend::kCpu && !own && is_nccl_available();
  group.takes_cuda = own || staged;
  return staged;
}

std::unique_ptr<GroupBackend> combine_backends(std::unique_ptr<GroupBackend> cpu,
                                               std::unique_ptr<GroupBackend> cuda) {
  return std::make_unique<TwoBackends>(std::move(cpu), std::move(cuda));
}

}  // namespace gradwire::collectives
