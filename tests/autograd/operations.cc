#include "gradwire/tests/autograd/operations.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "gradwire/tests/autograd/random.h"

namespace programs {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType to_torch(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat64:
      return at::kDouble;
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kInt64:
      return at::kLong;
  }
  return at::kDouble;
}

at::Tensor data(const Site& site, at::IntArrayRef shape, at::ScalarType dtype, uint64_t seed) {
  Random random(seed);
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  double* numbers = out.data_ptr<double>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    if (site.program.family == Family::kExact) {
      numbers[i] = static_cast<double>(random.between(-3, 3));
      if (site.bounds) numbers[i] = std::max(1.0, std::abs(numbers[i]));
    } else {
      numbers[i] =
          (random.percent(50) ? 1 : -1) * (0.25 + static_cast<double>(random.next() >> 11) * 0x1p-53);
    }
  }
  return out.to(dtype);
}

at::Tensor doubled(HookCalls& calls, const at::Tensor& gradient) {
  if (!gradient.defined()) {
    ++calls.undefined;
    return gradient;
  }
  ++calls.defined;
  return gradient * 2;
}

struct DropGradient : torch::autograd::Function<DropGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    context->set_materialize_grads(false);
    return a + b;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {at::Tensor(), gradients[0]};
  }
};

void hook(const Site& site, std::size_t which, const at::Tensor& tensor) {
  tensor.register_hook([hooks = site.hooks, which](const at::Tensor& gradient) {
    return doubled(hooks->at(which), gradient);
  });
}

std::vector<at::Tensor> outputs(Site& site, const Operation& operation, std::vector<at::Tensor>& values) {
  const auto in = [&](std::size_t i) -> at::Tensor& { return values.at(operation.inputs.at(i)); };
  const std::vector<int64_t>& n = operation.numbers;
  const auto all = [&] { return std::vector<at::Tensor>{in(0), in(1)}; };
  const auto rows = [&] {
    return at::tensor(at::ArrayRef<int64_t>(n).slice(1), at::TensorOptions().dtype(at::kLong));
  };
  switch (operation.kind) {
    case Kind::kLeaf:
      return {site.leaves.at(n[0])};
    case Kind::kAdd:
      return {in(0) + in(1)};
    case Kind::kSub:
      return {site.bounds ? in(0) + in(1) : in(0) - in(1)};
    case Kind::kMul:
      return {in(0) * in(1)};
    case Kind::kScale: {
      double by = static_cast<double>(n[0]);
      if (site.program.family != Family::kExact) by /= 16;
      return {in(0) * (site.bounds ? std::abs(by) : by)};
    }
    case Kind::kNeg:
      return {site.bounds ? in(0).clone() : in(0).neg()};
    case Kind::kRelu:
      return {in(0).relu()};
    case Kind::kSquare:
      return {in(0).pow(2)};
    case Kind::kSin:
      return {in(0).sin()};
    case Kind::kTanh:
      return {in(0).tanh()};
    case Kind::kMatmul:
      return {in(0).mm(in(1))};
    case Kind::kSum:
      return {in(0).sum()};
    case Kind::kSumDim:
      return {in(0).sum(n[0])};
    case Kind::kCast:
      return {in(0).to(to_torch(static_cast<Dtype>(n[0])))};
    case Kind::kTranspose:
      return {in(0).transpose(n[0], n[1])};
    case Kind::kSelect:
      return {in(0).select(n[0], n[1])};
    case Kind::kNarrow:
      return {in(0).narrow(n[0], n[1], n[2])};
    case Kind::kUnsqueeze:
      return {in(0).unsqueeze(n[0])};
    case Kind::kExpand:
      return {in(0).expand(n)};
    case Kind::kUnbind:
      return in(0).unbind(n[0]);
    case Kind::kSplit:
      return in(0).split(2, n[0]);
    case Kind::kReshape:
      return {in(0).reshape({-1})};
    case Kind::kDetach:
      return {in(0).detach()};
    case Kind::kCat:
      return {at::cat(all(), n[0])};
    case Kind::kStack:
      return {at::stack(all(), n[0])};
    case Kind::kIndexSelect:
      return {in(0).index_select(n[0], rows())};
    case Kind::kEmbedding:
      return {at::embedding(in(0), rows(), /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, n[0] != 0)};
    case Kind::kDropGradient:
      return {DropGradient::apply(in(0), in(1))};
    case Kind::kHook:
      hook(site, static_cast<std::size_t>(n[0]), in(0));
      return {};
    case Kind::kAddInPlace:
      in(0).add_(in(1));
      return {};
    case Kind::kScaleInPlace:
      in(0).mul_(n[0]);
      return {};
    case Kind::kMulInPlace:
      in(0).mul_(in(1));
      return {};
    case Kind::kCopyInPlace:
      in(0).copy_(in(1));
      return {};
    default:
      throw std::logic_error(absl::StrCat("run_operation cannot run the operation ", name(operation.kind)));
  }
}

}  // namespace

Site::Site(const Program& program, bool bounds)
    : program(program),
      bounds(bounds),
      hooks(std::make_shared<std::vector<HookCalls>>(program.hooks + program.leaves.size())) {
  for (std::size_t i = 0; i < program.leaves.size(); ++i) {
    const Leaf& leaf = program.leaves[i];
    at::Tensor tensor = data(*this, leaf.type.shape, to_torch(leaf.type.dtype), leaf.seed);
    if (leaf.type.requires_grad) tensor.requires_grad_();
    if (leaf.hook) hook(*this, program.hooks + i, tensor);
    leaves.push_back(std::move(tensor));
  }
}

void run_operation(Site& site, const Block& block, const Operation& operation,
                   std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> made;
  if (operation.kind == Kind::kConstant) {
    for (int output : operation.outputs) {
      const Type& type = block.values.at(output);
      made.push_back(data(site, type.shape, to_torch(type.dtype), static_cast<uint64_t>(output)));
    }
  } else {
    made = outputs(site, operation, values);
  }
  for (std::size_t i = 0; i < operation.outputs.size(); ++i) values.at(operation.outputs[i]) = made.at(i);
  if (!site.bounds) return;
  for (int id : operation.inputs) made.push_back(values[id]);
  for (const at::Tensor& tensor : made) {
    if (tensor.numel() > 0) site.largest = std::max(site.largest, tensor.detach().abs().max().item<double>());
  }
}

std::vector<at::Tensor> root_gradients(const Site& site, const Pass& pass,
                                       const std::vector<at::Tensor>& roots) {
  std::vector<at::Tensor> gradients;
  bool any = false;
  for (std::size_t i = 0; i < roots.size(); ++i) {
    const uint64_t seed = pass.roots[i].seed;
    gradients.push_back(seed == 0 ? at::Tensor()
                                  : data(site, roots[i].sizes(), roots[i].scalar_type(), seed));
    any |= seed != 0;
  }
  if (!any) gradients.clear();
  return gradients;
}

}  // namespace programs
