#include "gradwire/data_parallel/module_reducer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"

namespace gradwire::collectives {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// The dictionary's defined tensors, each only once, with its first name. A module may register one tensor
// under several names (weight tying), but the tensor has only one gradient.
template <class Dictionary>
std::vector<NamedTensor> unique_tensors(const Dictionary& dictionary) {
  std::vector<NamedTensor> list;
  std::set<const void*> seen;
  for (const auto& item : dictionary) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    list.push_back({item.key(), item.value()});
  }
  return list;
}

absl::Status check_options(const std::vector<NamedTensor>& parameters,
                           const DistributedDataParallelOptions& options,
                           const std::optional<at::Device>& device) {
  if (!(options.bucket_cap_mb > 0) || !std::isfinite(options.bucket_cap_mb)) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket_cap_mb must be positive and finite, got ", options.bucket_cap_mb));
  }
  if (!device.has_value()) return absl::OkStatus();
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device() == *device) continue;
    return absl::InvalidArgumentError(absl::StrCat("device mismatch: device_ids says ", device->str(),
                                                   ", but the parameter \"", parameter.name, "\" is on ",
                                                   parameter.tensor.device().str()));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<at::Device> input_device(const torch::nn::Module& module,
                                       const DistributedDataParallelOptions& options) {
  if (options.device_ids.empty()) return std::nullopt;
  if (options.device_ids.size() > 1) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("device_ids must have at most one device, got ", options.device_ids.size())));
  }
  const int64_t index = options.device_ids[0];
  if (index < 0 || index > std::numeric_limits<c10::DeviceIndex>::max()) {
    throw Error(
        absl::InvalidArgumentError(absl::StrCat("device_ids must have the index of a device, got ", index)));
  }
  c10::DeviceType type = at::kCUDA;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.defined() && !parameter.is_cpu()) {
      type = parameter.device().type();
      break;
    }
  }
  return at::Device(type, static_cast<c10::DeviceIndex>(index));
}

std::unique_ptr<Reducer> make_reducer(const torch::nn::Module& module,
                                      const DistributedDataParallelOptions& options) {
  std::vector<NamedTensor> parameters = unique_tensors(module.named_parameters());
  throw_if_error(check_options(parameters, options, input_device(module, options)));
  ReducerOptions reducer;
  reducer.group = group_or_world(options.group);
  if (reducer.group->rank() < 0) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "DistributedDataParallel: this rank is not a member of the group \"", reducer.group->name(), "\"")));
  }
  reducer.caps.others = static_cast<uint64_t>(std::max(1.0, options.bucket_cap_mb * kMiB));
  reducer.caps.first = std::min(reducer.caps.first, reducer.caps.others);
  reducer.find_unused_parameters = options.find_unused_parameters;
  reducer.broadcast_buffers = options.broadcast_buffers;
  return std::make_unique<Reducer>(std::move(parameters), unique_tensors(module.named_buffers()),
                                   std::move(reducer));
}

}  // namespace gradwire::collectives
