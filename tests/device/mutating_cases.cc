#include <ATen/ATen.h>

#include "gradwire/tests/device/operator_cases.h"

namespace gradwire {
namespace {

using In = OperatorInputs;
using Out = OperatorResults;

std::vector<OperatorCase> in_place() {
  return {
      {"add_",
       [](In& in) -> Out {
         return {in.a.add_(in.b), in.a};
       }},
      {"add_itself", [](In& in) -> Out { return {in.a.add_(in.a)}; }},
      {"mul_number_", [](In& in) -> Out { return {in.a.mul_(0.5).sub_(1)}; }},
      {"view_is_written",
       [](In& in) -> Out {
         return {in.a.select(1, 2).add_(5), in.a};
       }},
      {"transposed_is_written",
       [](In& in) -> Out {
         return {in.a.t().mul_(in.b.t()), in.a};
       }},
      {"fill_",
       [](In& in) -> Out {
         return {in.a.fill_(3), in.b.zero_(), in.m.fill_(in.image[0][0][0][0])};
       }},
      {"fill_part",
       [](In& in) -> Out {
         return {in.a.slice(1, 1, 3).fill_(3), in.a};
       }},
      {"copy_",
       [](In& in) -> Out {
         return {in.a.copy_(in.b), in.b.copy_(in.a[0])};
       }},
      {"copy_converts", [](In& in) -> Out { return {in.index.copy_(in.a.select(1, 0) * 10)}; }},
      {"copy_overlapping_rows",
       [](In& in) -> Out {
         return {in.a.slice(0, 0, 2).copy_(in.a.slice(0, 2, 4)), in.a};
       }},
      {"clamp_",
       [](In& in) -> Out {
         return {in.a.clamp_(0, 1), in.b.relu_()};
       }},
      {"masked_fill_", [](In& in) -> Out { return {in.a.masked_fill_(in.mask, 1)}; }},
      {"index_put_", [](In& in) -> Out { return {in.a.index_put_({in.index}, in.b)}; }},
      {"index_copy_",
       [](In& in) -> Out { return {in.a.index_copy_(0, at::arange(4, in.index.options()), in.b)}; }},
      {"scatter_", [](In& in) -> Out { return {in.a.scatter_(1, in.columns, 2)}; }},
      {"addcdiv_", [](In& in) -> Out { return {in.a.addcdiv_(in.b, in.b.abs() + 1, -0.1)}; }},
      {"addmm_", [](In& in) -> Out { return {in.definite.addmm_(in.a, in.b.t())}; }},
      {"lerp_", [](In& in) -> Out { return {in.a.lerp_(in.b, 0.9)}; }},
      {"bernoulli_of_one", [](In& in) -> Out { return {in.a.bernoulli_(1.0)}; }},
      {"foreach",
       [](In& in) -> Out {
         std::vector<at::Tensor> list = {in.a, in.b};
         at::_foreach_mul_(list, 2);
         at::_foreach_add_(list, list, 0.5);
         return {in.a, in.b, at::_foreach_norm(list)[1]};
       }},
      {"random_permutation",
       [](In& in) -> Out { return {std::get<0>(at::randperm(9, in.index.options()).sort())}; }},
  };
}

std::vector<OperatorCase> with_out() {
  return {
      {"add_out",
       [](In& in) -> Out {
         return {at::add_out(in.m, in.a, in.b), in.m};
       }},
      {"add_out_of_right_size",
       [](In& in) -> Out {
         at::Tensor out = at::empty_like(in.a);
         return {at::add_out(out, in.a, in.b), out};
       }},
      {"add_out_is_input", [](In& in) -> Out { return {at::add_out(in.a, in.a, in.b)}; }},
      {"out_grows_from_nothing",
       [](In& in) -> Out {
         at::Tensor out = at::empty({0}, in.a.options());
         at::matmul_out(out, in.a, in.m);
         return {out, out * 2};
       }},
      {"sort_out",
       [](In& in) -> Out {
         at::Tensor values = at::empty({0}, in.a.options());
         at::Tensor indices = at::empty({0}, in.index.options());
         at::sort_out(values, indices, in.a, 1, false);
         return {values, indices};
       }},
      {"cat_out",
       [](In& in) -> Out {
         at::Tensor out = at::empty({0}, in.a.options());
         return {at::cat_out(out, {in.a, in.b})};
       }},
      {"sum_out",
       [](In& in) -> Out {
         at::Tensor out = at::empty({6}, in.a.options());
         return {at::sum_out(out, in.a, 0), out};
       }},
      {"nonzero_out",
       [](In& in) -> Out {
         at::Tensor out = at::empty({0}, in.index.options());
         return {at::nonzero_out(out, in.mask)};
       },
       true},
  };
}

std::vector<OperatorCase> views() {
  return {
      {"reshape",
       [](In& in) -> Out {
         return {in.a.view({6, 4}), in.a.t().reshape({24}), in.a.flatten()};
       }},
      {"slices",
       [](In& in) -> Out {
         return {in.a.slice(0, 1, 4, 2), in.a.narrow(1, 2, 3), in.a[2]};
       }},
      {"permute",
       [](In& in) -> Out {
         return {in.image.permute({3, 0, 2, 1}), in.a.unsqueeze(1), in.a.t()};
       }},
      {"expand",
       [](In& in) -> Out {
         return {in.a.unsqueeze(0).expand({3, 4, 6}), in.a.expand_as(in.a)};
       }},
      {"split", [](In& in) -> Out { return in.a.split(4, 1); }},
      {"chunk", [](In& in) -> Out { return in.a.chunk(2); }},
      {"diagonal",
       [](In& in) -> Out {
         return {in.a.diagonal(), in.a.diag()};
       }},
      {"unfold", [](In& in) -> Out { return {in.a.unfold(1, 3, 2)}; }},
      {"as_strided",
       [](In& in) -> Out {
         return {in.a.as_strided({2, 3}, {1, 4}, 2)};
       }},
      {"view_of_type", [](In& in) -> Out { return {in.a.view(at::kInt)}; }},
      {"contiguous",
       [](In& in) -> Out {
         return {in.a.t().contiguous(), in.image.contiguous(at::MemoryFormat::ChannelsLast)};
       }},
      {"clone",
       [](In& in) -> Out {
         return {in.a.clone(), in.a.t().clone(), in.a.detach()};
       }},
      {"set_",
       [](In& in) -> Out {
         return {at::empty({0}, in.a.options()).set_(in.a), in.b.set_(in.a.storage())};
       }},
      {"set_part",
       [](In& in) -> Out {
         return {in.b.set_(in.a.storage(), 3, {2, 2}, {1, 5})};
       }},
      {"resize_",
       [](In& in) -> Out {
         const at::Tensor grown = in.a.clone().resize_({8, 6});
         return {grown.slice(0, 0, 4), in.b.resize_({2, 3})};
       }},
      {"swap_values",
       [](In& in) -> Out {
         const at::Tensor copy = in.a.clone();
         in.a.copy_(in.b);
         in.b.copy_(copy);
         return {in.a, in.b};
       }},
  };
}

}  // namespace

std::vector<OperatorCase> mutating_cases() {
  std::vector<OperatorCase> all;
  for (auto& group : {in_place(), with_out(), views()}) all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace gradwire
