#include "gradwire/collectives/group/backend_choice.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

// The world_state() of each backend of a CombinedBackends, in the order of the backends.
struct WorldStates {
  std::vector<std::shared_ptr<void>> of;
};

// Sends each operation to the backend for the device of its tensors. All backends belong to one group and
// have the same members.
class CombinedBackends : public GroupBackend {
 public:
  explicit CombinedBackends(std::vector<DeviceBackend> backends) : backends_(std::move(backends)) {}

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
  absl::Status all_gather_uneven(at::Tensor tensor, Tensors outputs, absl::Time deadline) override {
    return of(tensor).all_gather_uneven(std::move(tensor), std::move(outputs), deadline);
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
  absl::Status barrier(absl::Time deadline) override {
    return use(*backends_.front().backend).barrier(deadline);
  }
  // The caller names devices if the barrier is to wait for them.
  absl::Status barrier_on(const std::vector<int>& device_ids, absl::Time deadline) override {
    return use(*(device_ids.empty() ? backends_.front() : backends_[1]).backend)
        .barrier_on(device_ids, deadline);
  }
  absl::Status together(c10::Device device,
                        const std::vector<std::function<absl::Status()>>& calls) override {
    return of(device.type()).together(device, calls);
  }
  absl::Status check_peer(c10::Device device, int peer) const override {
    for (const DeviceBackend& each : backends_) {
      if (each.type == device.type()) return each.backend->check_peer(device, peer);
    }
    return absl::OkStatus();
  }
  Future<void> send(at::Tensor tensor, int dst, int tag, absl::Time deadline) override {
    return of(tensor).send(std::move(tensor), dst, tag, deadline);
  }
  Future<int> receive(at::Tensor tensor, int src, int tag, absl::Time deadline) override {
    return of(tensor).receive(std::move(tensor), src, tag, deadline);
  }
  void abort(const absl::Status& reason) override {
    for (const DeviceBackend& each : backends_) each.backend->abort(reason);
  }
  std::unique_ptr<Enqueued> take_enqueued() override {
    // The thread may have used another group since. Then nothing was enqueued for this one.
    for (const DeviceBackend& each : backends_) {
      if (last_ == each.backend.get()) return last_->take_enqueued();
    }
    return nullptr;
  }
  MultiDevice* multi_device() override { return use(*backends_[1].backend).multi_device(); }
  std::shared_ptr<void> world_state() override {
    auto states = std::make_shared<WorldStates>();
    for (const DeviceBackend& each : backends_) states->of.push_back(each.backend->world_state());
    return states;
  }

 private:
  GroupBackend& use(GroupBackend& backend) {
    last_ = &backend;
    return backend;
  }
  // The backend for a tensor. The checks of the arguments have refused tensors of other devices. In
  // `of(tensor).broadcast(std::move(tensor), ...)` C++17 evaluates `of(tensor)` before the arguments, so the
  // tensor has not been moved away yet.
  GroupBackend& of(const at::Tensor& tensor) { return of(tensor.device().type()); }
  GroupBackend& of(c10::DeviceType type) {
    for (const DeviceBackend& each : backends_) {
      if (each.type == type) return use(*each.backend);
    }
    return use(*backends_.front().backend);
  }

  // Few, so a search is as fast as a table.
  const std::vector<DeviceBackend> backends_;
  // The backend that the calling thread used last; take_enqueued(), called right after an operation, needs
  // it.
  static thread_local GroupBackend* last_;
};

thread_local GroupBackend* CombinedBackends::last_ = nullptr;

// The types of devices whose tensors a backend accepts itself.
std::vector<c10::DeviceType> own_devices(Backend kind) {
  if (kind == Backend::kNccl) return {c10::DeviceType::CUDA};
  const auto takes_cuda = find_backend(kind)->takes_cuda;
  if (takes_cuda != nullptr && takes_cuda()) return {c10::DeviceType::CPU, c10::DeviceType::CUDA};
  return {c10::DeviceType::CPU};
}

}  // namespace

absl::StatusOr<BackendChoice> choose_backend(const std::string& name) {
  GRADWIRE_ASSIGN_OR_RETURN(const Backend kind, find_backend_name(name.empty() ? "cpu" : name));
  BackendChoice choice{kind, {}};
  if (name.empty()) choice.accelerators = accelerator_backends();
  return choice;
}

std::string to_string(const BackendChoice& choice) {
  std::string text = to_string(choice.kind);
  for (const AcceleratorBackend& each : choice.accelerators) absl::StrAppend(&text, " and ", each.name);
  return text;
}

absl::StatusOr<std::unique_ptr<GroupBackend>> make_backend(const BackendChoice& choice,
                                                           const BackendContext& context) {
  if (choice.accelerators.empty()) return find_backend(choice.kind)->make(context);
  const auto states = std::static_pointer_cast<WorldStates>(context.world_state);
  std::vector<DeviceBackend> made;
  const auto add = [&](c10::DeviceType type, BackendFactory make) -> absl::Status {
    BackendContext own = context;
    own.world_state = states == nullptr ? nullptr : states->of[made.size()];
    // The options belong to the cpu backend. To give options to nccl, the user must name "nccl" as the
    // backend.
    if (!made.empty()) own.options.clear();
    GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<GroupBackend> backend, make(own));
    made.push_back({type, std::move(backend)});
    return absl::OkStatus();
  };
  GRADWIRE_RETURN_IF_ERROR(add(c10::DeviceType::CPU, find_backend(choice.kind)->make));
  for (const AcceleratorBackend& each : choice.accelerators) {
    GRADWIRE_RETURN_IF_ERROR(with_context(add(each.type, each.make), each.name));
  }
  return combine_backends(std::move(made));
}

std::vector<ServedDevice> served_devices(const BackendChoice& choice) {
  std::vector<ServedDevice> served;
  const auto add = [&served](c10::DeviceType type, const std::string& backend, bool staged = false) {
    const auto same = [type](const ServedDevice& each) { return each.type == type; };
    if (std::none_of(served.begin(), served.end(), same)) served.push_back({type, backend, staged});
  };
  const std::string name = to_string(choice.kind);
  for (const c10::DeviceType type : own_devices(choice.kind)) add(type, name);
  for (const AcceleratorBackend& each : choice.accelerators) add(each.type, each.name);
  if (choice.kind != Backend::kCpu) return served;
  for (const c10::DeviceType type :
       {c10::DeviceType::CUDA, c10::DeviceType::XPU, c10::DeviceType::PrivateUse1}) {
    // Only for accelerators that this program can use. libtorch has a guard for CUDA in a CUDA build only;
    // but tests make groups of a fake nccl, which stands for such a build.
    const bool usable =
        c10::impl::hasDeviceGuardImpl(type) || (type == c10::DeviceType::CUDA && is_nccl_available());
    if (usable) add(type, name, /*staged=*/true);
  }
  return served;
}

std::unique_ptr<GroupBackend> combine_backends(std::vector<DeviceBackend> backends) {
  return std::make_unique<CombinedBackends>(std::move(backends));
}

}  // namespace gradwire::collectives
