#include "gradwire/data_parallel/module_reducer.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/world.h"

namespace gradwire::data_parallel {
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

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A name that the module does not have is probably misspelled.
absl::Status check_names(const char* option, const std::vector<std::string>& names,
                         const std::vector<NamedTensor>& tensors) {
  for (const std::string& name : names) {
    if (std::none_of(tensors.begin(), tensors.end(), [&](const auto& each) { return each.name == name; })) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, ": the module has no \"", name,
                       "\"; use the names of its named_parameters() and named_buffers()"));
    }
  }
  return absl::OkStatus();
}

// The names of the weights whose gradients are sparse.
std::set<std::string> sparse_weights(const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_modules()) {
    const auto* embedding = item.value()->as<torch::nn::Embedding>();
    const auto* bag = item.value()->as<torch::nn::EmbeddingBag>();
    const bool sparse =
        (embedding != nullptr && embedding->options.sparse()) || (bag != nullptr && bag->options.sparse());
    if (sparse) names.insert(item.key().empty() ? "weight" : item.key() + ".weight");
  }
  return names;
}

// Removes the tensors with these names.
void erase_names(std::vector<NamedTensor>& tensors, const std::vector<std::string>& names) {
  std::erase_if(tensors, [&](const NamedTensor& each) { return contains(names, each.name); });
}

absl::Status check_cap(const char* option, double megabytes) {
  if (megabytes > 0 && std::isfinite(megabytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, " must be positive and finite, got ", megabytes));
}

absl::Status check_options(const std::vector<NamedTensor>& parameters,
                           const DistributedDataParallelOptions& options,
                           const std::optional<at::Device>& device) {
  if (absl::Status checked = check_cap("bucket_cap_mb", options.bucket_cap_mb.value_or(1)); !checked.ok())
    return checked;
  if (absl::Status checked = check_cap("first_bucket_cap_mb", options.first_bucket_cap_mb.value_or(1));
      !checked.ok()) {
    return checked;
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

at::Device parameter_device(const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.defined() && parameter.requires_grad()) return parameter.device();
  }
  return at::kCPU;
}

std::optional<at::ScalarType> input_dtype(const DistributedDataParallelOptions& options) {
  if (!options.mixed_precision.has_value() || !options.mixed_precision->cast_forward_inputs) {
    return std::nullopt;
  }
  return options.mixed_precision->param_dtype;
}

std::unique_ptr<Reducer> make_reducer(const torch::nn::Module& module,
                                      const DistributedDataParallelOptions& options) {
  std::vector<NamedTensor> parameters = unique_tensors(module.named_parameters());
  std::vector<NamedTensor> buffers = unique_tensors(module.named_buffers());
  throw_if_error(check_options(parameters, options, input_device(module, options)));
  throw_if_error(check_names("delayed_parameters", options.delayed_parameters, parameters));
  throw_if_error(check_names("sparse_parameters", options.sparse_parameters, parameters));
  std::vector<NamedTensor> all = parameters;
  all.insert(all.end(), buffers.begin(), buffers.end());
  throw_if_error(check_names("ignored", options.ignored, all));
  erase_names(parameters, options.ignored);
  erase_names(buffers, options.ignored);

  ReducerOptions reducer;
  const std::set<std::string> sparse = sparse_weights(module);
  for (NamedTensor& each : parameters) {
    each.sparse_gradient = sparse.contains(each.name) || contains(options.sparse_parameters, each.name);
    if (contains(options.delayed_parameters, each.name)) reducer.delayed.push_back(each);
  }
  reducer.group = collectives::group_or_world(options.group);
  if (reducer.group->rank() < 0) {
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("DistributedDataParallel: this rank is not a member of the group \"",
                     reducer.group->name(), "\"; make the replica on the group's ranks only")));
  }
  const auto bytes = [](double megabytes) { return static_cast<uint64_t>(std::max(1.0, megabytes * kMiB)); };
  if (options.bucket_cap_mb.has_value()) reducer.caps.others = bytes(*options.bucket_cap_mb);
  reducer.tune_caps = !options.bucket_cap_mb.has_value();
  reducer.caps.first = options.first_bucket_cap_mb.has_value()
                           ? bytes(*options.first_bucket_cap_mb)
                           : std::min(reducer.caps.first, reducer.caps.others);
  reducer.find_unused_parameters = options.find_unused_parameters;
  reducer.broadcast_buffers = options.broadcast_buffers;
  reducer.static_graph = options.static_graph;
  if (const auto& mixed = options.mixed_precision; mixed.has_value()) {
    reducer.compute_dtype = mixed->param_dtype;
    reducer.reduce_dtype = mixed->reduce_dtype.value_or(mixed->param_dtype);
    for (NamedTensor& buffer : buffers) {
      if (!mixed->buffer_dtype.has_value() || buffer.tensor.scalar_type() != at::kFloat) continue;
      buffer.tensor.set_data(buffer.tensor.variable_data().to(*mixed->buffer_dtype));
    }
  }
  return std::make_unique<Reducer>(std::move(parameters), std::move(buffers), std::move(reducer));
}

}  // namespace gradwire::data_parallel
