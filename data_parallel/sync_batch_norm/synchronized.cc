#include "gradwire/data_parallel/sync_batch_norm/synchronized.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::data_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The dtype of the statistics: float64 for float64, otherwise float32.
at::ScalarType statistics_dtype(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// All dimensions but the channels.
std::vector<int64_t> other_dimensions(const at::Tensor& input) {
  std::vector<int64_t> dimensions = {0};
  for (int64_t i = 2; i < input.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

// A tensor [C] in a shape that broadcasts over the input.
at::Tensor per_channel(const at::Tensor& channels, const at::Tensor& input) {
  std::vector<int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = channels.numel();
  return channels.view(sizes);
}

void check(const BatchNormArguments& arguments) {
  const at::Tensor& input = arguments.input;
  if (input.dim() < 2 || !at::isFloatingType(input.scalar_type())) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "SyncBatchNorm: the input must have the shape [N, C, ...] and a floating point dtype, got ",
        input.dim(), " dimensions of ", c10::toString(input.scalar_type()))));
  }
  for (const at::Tensor* each :
       {&arguments.weight, &arguments.bias, &arguments.running_mean, &arguments.running_var}) {
    if (!each->defined() || each->numel() == input.size(1)) continue;
    throw Error(absl::InvalidArgumentError(
        absl::StrCat("SyncBatchNorm: the input has ", input.size(1), " channels, expected ", each->numel())));
  }
}

struct Statistics {
  at::Tensor mean, variance;
  // Number of values per channel on all ranks.
  double count = 0;
};

// Each rank sends its mean, its sum of squared deviations and its count, all per channel, in one message. The
// sums of squares of the ranks are shifted to the common mean, so that no precision is lost when the mean is
// large against the deviation. The values are added in the order of the ranks, so all ranks have the same
// bits.
Statistics statistics_of_all(collectives::ProcessGroup& group, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const at::ScalarType dtype = statistics_dtype(input);
  const at::TensorOptions options = input.options().dtype(dtype).requires_grad(false);
  at::Tensor mine = at::zeros({2 * channels + 1}, options);
  if (input.numel() > 0) {
    const at::Tensor wide = input.to(dtype);
    const at::Tensor mean = wide.mean(other_dimensions(input));
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels)
        .copy_((wide - per_channel(mean, input)).square().sum(other_dimensions(input)));
    mine.narrow(0, 2 * channels, 1).fill_(static_cast<double>(input.numel() / channels));
  }
  const at::Tensor all = at::empty({group.size(), 2 * channels + 1}, options);
  group.all_gather_into_tensor(all, mine);
  const at::Tensor counts = all.select(1, 2 * channels);
  Statistics result;
  result.count = counts.sum().item<double>();
  if (!(result.count >= 2) || !std::isfinite(result.count)) {
    throw Error(absl::InvalidArgumentError(absl::StrCat(
        "SyncBatchNorm needs at least two values per channel on all ranks together, got ", result.count)));
  }
  const at::Tensor means = all.narrow(1, 0, channels), squares = all.narrow(1, channels, channels);
  const at::Tensor weights = counts.unsqueeze(1);
  result.mean = (means * weights).sum(0) / result.count;
  result.variance = (squares + weights * (means - result.mean).square()).sum(0) / result.count;
  return result;
}

class Normalisation : public torch::autograd::Function<Normalisation> {
 public:
  // `weight_or_none` and `bias_or_none` are those of `arguments`; autograd finds its inputs among the
  // function's own arguments, and takes no undefined tensors.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight_or_none,
                            const std::optional<at::Tensor>& bias_or_none,
                            const BatchNormArguments& arguments,
                            const std::shared_ptr<collectives::ProcessGroup>& group) {
    const at::Tensor weight = weight_or_none.value_or(at::Tensor()),
                     bias = bias_or_none.value_or(at::Tensor());
    const Statistics all = statistics_of_all(*group, input);
    const at::Tensor inverse = at::rsqrt(all.variance + arguments.eps);
    if (arguments.running_mean.defined()) {
      at::Tensor mean = arguments.running_mean, variance = arguments.running_var;
      const double unbiased = all.count / (all.count - 1);
      mean.mul_(1 - arguments.momentum).add_(all.mean.to(mean.scalar_type()), arguments.momentum);
      variance.mul_(1 - arguments.momentum)
          .add_(all.variance.to(variance.scalar_type()), arguments.momentum * unbiased);
    }
    context->save_for_backward({input, weight, all.mean, inverse});
    context->saved_data["count"] = all.count;
    if (bias.defined()) context->saved_data["bias_dtype"] = static_cast<int64_t>(bias.scalar_type());
    // The group is not a value that TorchScript knows, so it travels in a shared object.
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
    at::Tensor output =
        (input.to(all.mean.scalar_type()) - per_channel(all.mean, input)) * per_channel(inverse, input);
    if (weight.defined()) output = output * per_channel(weight.to(output.scalar_type()), input);
    if (bias.defined()) output = output + per_channel(bias.to(output.scalar_type()), input);
    return output.to(input.scalar_type());
  }

  // With x the normalised input, dy the gradient of the output, and sums over the values of all ranks:
  //   d input = weight * inverse / count * (count * dy - sum(dy) - x * sum(dy * x))
  // The sums are exchanged; the gradients of weight and bias are the sums of this rank alone.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const at::ScalarType dtype = mean.scalar_type();
    const int64_t channels = input.size(1);
    const at::Tensor dy = gradients[0].to(dtype);
    const at::Tensor x = (input.to(dtype) - per_channel(mean, input)) * per_channel(inverse, input);
    const at::Tensor sum = dy.sum(other_dimensions(input));
    const at::Tensor sum_x = (dy * x).sum(other_dimensions(input));
    variable_list result(5);
    if (context->needs_input_grad(0)) {
      const at::Tensor both = at::cat({sum, sum_x});
      holder_of(*context).group->all_reduce(both);
      const double count = context->saved_data["count"].toDouble();
      const at::Tensor of_all = per_channel(both.narrow(0, 0, channels) / count, input);
      const at::Tensor of_all_x = per_channel(both.narrow(0, channels, channels) / count, input);
      at::Tensor scale = inverse;
      if (weight.defined()) scale = scale * weight.to(dtype);
      result[0] = ((dy - of_all - x * of_all_x) * per_channel(scale, input)).to(input.scalar_type());
    }
    if (weight.defined()) result[1] = sum_x.to(weight.scalar_type());
    if (const auto bias = context->saved_data.find("bias_dtype"); bias != context->saved_data.end()) {
      result[2] = sum.to(static_cast<at::ScalarType>(bias->second.toInt()));
    }
    return result;
  }

 private:
  struct GroupHolder : torch::CustomClassHolder {
    explicit GroupHolder(std::shared_ptr<collectives::ProcessGroup> g) : group(std::move(g)) {}
    const std::shared_ptr<collectives::ProcessGroup> group;
  };
  static const GroupHolder& holder_of(AutogradContext& context) {
    return static_cast<const GroupHolder&>(*context.saved_data["group"].toCapsule());
  }
};

}  // namespace

at::Tensor synchronized_batch_norm(const std::shared_ptr<collectives::ProcessGroup>& group,
                                   const BatchNormArguments& arguments) {
  check(arguments);
  const auto or_none = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  return Normalisation::apply(arguments.input, or_none(arguments.weight), or_none(arguments.bias), arguments,
                              group);
}

}  // namespace gradwire::data_parallel
