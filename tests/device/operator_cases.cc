#include "gradwire/tests/device/operator_cases.h"

#include <ATen/ATen.h>

namespace gradwire {
namespace {

using In = OperatorInputs;
using Out = OperatorResults;

std::vector<OperatorCase> elementwise() {
  return {
      {"add", [](In& in) -> Out { return {in.a + in.b}; }},
      {"add_alpha", [](In& in) -> Out { return {at::add(in.a, in.b, 2.5)}; }},
      {"add_number", [](In& in) -> Out { return {in.a + 3}; }},
      {"number_minus", [](In& in) -> Out { return {1 - in.a}; }},
      {"add_integer_and_float", [](In& in) -> Out { return {in.index + 0.5}; }},
      {"add_cpu_number", [](In& in) -> Out { return {in.a + at::scalar_tensor(2.5, at::kDouble)}; }},
      {"sub", [](In& in) -> Out { return {in.a - in.b}; }},
      {"mul_broadcast", [](In& in) -> Out { return {in.a * in.b.select(0, 1)}; }},
      {"div", [](In& in) -> Out { return {in.a / in.b}; }},
      {"floor_divide", [](In& in) -> Out { return {at::floor_divide(in.columns, 2)}; }},
      {"remainder", [](In& in) -> Out { return {at::remainder(in.columns, 4)}; }},
      {"pow",
       [](In& in) -> Out {
         return {in.a.abs().pow(1.5), at::pow(2, in.a)};
       }},
      {"exp",
       [](In& in) -> Out {
         return {in.a.exp(), in.a.abs().log(), in.a.sigmoid(), in.a.tanh()};
       }},
      {"sqrt",
       [](In& in) -> Out {
         return {in.a.abs().sqrt(), in.a.abs().rsqrt(), in.a.neg()};
       }},
      {"compare",
       [](In& in) -> Out {
         return {in.a > in.b, in.a == in.a, in.a.le(0)};
       }},
      {"logical",
       [](In& in) -> Out {
         return {in.mask & (in.a > 0), ~in.mask, in.mask.logical_not()};
       }},
      {"where",
       [](In& in) -> Out {
         return {at::where(in.mask, in.a, in.b), at::where(in.mask, in.a, 0)};
       }},
      {"clamp",
       [](In& in) -> Out {
         return {in.a.clamp(-0.5, 0.5), in.a.clamp_min(0)};
       }},
      {"maximum",
       [](In& in) -> Out {
         return {at::maximum(in.a, in.b), at::minimum(in.a, in.b)};
       }},
      {"lerp", [](In& in) -> Out { return {at::lerp(in.a, in.b, 0.25)}; }},
      {"addcmul", [](In& in) -> Out { return {at::addcmul(in.a, in.b, in.b, 0.5)}; }},
      {"nan_to_num", [](In& in) -> Out { return {at::nan_to_num(in.a / 0)}; }},
      {"isnan",
       [](In& in) -> Out {
         return {at::isnan(in.a / 0), at::isfinite(in.a)};
       }},
      {"to_type",
       [](In& in) -> Out {
         return {in.a.to(at::kDouble), in.a.to(at::kHalf), in.a.to(at::kInt)};
       }},
      {"complex",
       [](In& in) -> Out {
         const at::Tensor c = at::complex(in.a, in.b);
         return {c.conj() * c, at::view_as_real(c), c.abs(), at::real(c), at::imag(c.conj()) + 1};
       }},
      {"gelu",
       [](In& in) -> Out {
         return {at::gelu(in.a), at::silu(in.a), at::elu(in.a), at::relu(in.a)};
       }},
      {"dropout_off", [](In& in) -> Out { return {at::dropout(in.a, 0.5, false)}; }},
  };
}

std::vector<OperatorCase> algebra() {
  return {
      {"matmul", [](In& in) -> Out { return {in.a.matmul(in.m)}; }},
      {"matmul_vector",
       [](In& in) -> Out {
         return {in.a.mv(in.b.select(0, 0)), at::dot(in.a[0], in.b[0])};
       }},
      {"addmm", [](In& in) -> Out { return {at::addmm(in.m.select(0, 0), in.a, in.m, 0.5, 2)}; }},
      {"bmm", [](In& in) -> Out { return {in.image[0].bmm(in.image[1])}; }},
      {"linear", [](In& in) -> Out { return {at::linear(in.a, in.m.t(), in.m.select(0, 2))}; }},
      {"einsum",
       [](In& in) -> Out {
         return {at::einsum("ij,kj->ik", {in.a, in.b})};
       }},
      {"outer", [](In& in) -> Out { return {at::outer(in.a[0], in.b[1])}; }},
      {"convolution",
       [](In& in) -> Out {
         return {at::conv2d(in.image, in.image.slice(2, 0, 3).slice(3, 0, 3), {}, 1, 1)};
       }},
      {"pooling",
       [](In& in) -> Out {
         return {at::max_pool2d(in.image, 2), at::avg_pool2d(in.image, 2)};
       }},
      {"adaptive_pooling",
       [](In& in) -> Out {
         return {at::adaptive_avg_pool2d(in.image, {2, 2})};
       }},
      {"batch_norm",
       [](In& in) -> Out {
         at::Tensor mean = at::zeros({3}, in.a.options());
         at::Tensor variance = at::ones({3}, in.a.options());
         const at::Tensor y = at::batch_norm(in.image, {}, {}, mean, variance, true, 0.1, 1e-5, false);
         return {y, mean, variance};
       }},
      {"layer_norm", [](In& in) -> Out { return {at::layer_norm(in.a, {6}, in.b[0], in.b[1])}; }},
      {"softmax",
       [](In& in) -> Out {
         return {at::softmax(in.a, 1), at::log_softmax(in.a, 0)};
       }},
      {"losses",
       [](In& in) -> Out {
         return {at::mse_loss(in.a, in.b), at::l1_loss(in.a, in.b), at::cross_entropy_loss(in.a, in.index),
                 at::binary_cross_entropy(in.a.sigmoid(), in.b.sigmoid())};
       }},
      {"embedding", [](In& in) -> Out { return {at::embedding(in.a, in.index)}; }},
      {"pad",
       [](In& in) -> Out {
         return {at::constant_pad_nd(in.a, {1, 2}, 0.5)};
       }},
      {"upsample",
       [](In& in) -> Out {
         return {at::upsample_nearest2d(in.image, {16, 16})};
       }},
      {"cholesky", [](In& in) -> Out { return {at::linalg_cholesky(in.definite)}; }, true},
      {"inverse",
       [](In& in) -> Out {
         return {at::inverse(in.definite), at::linalg_det(in.definite)};
       },
       true},
      {"solve", [](In& in) -> Out { return {at::linalg_solve(in.definite, in.a)}; }, true},
  };
}

std::vector<OperatorCase> reductions() {
  return {
      {"sum",
       [](In& in) -> Out {
         return {in.a.sum(), in.a.sum(0), in.a.sum({1}, true)};
       }},
      {"mean",
       [](In& in) -> Out {
         return {in.a.mean(), in.a.mean(1), in.a.var(0), in.a.std()};
       }},
      {"norm",
       [](In& in) -> Out {
         return {in.a.norm(), at::linalg_vector_norm(in.a, 1, 0)};
       }},
      {"max",
       [](In& in) -> Out {
         return {in.a.max(), std::get<0>(in.a.max(1)), in.a.argmax(1)};
       }},
      {"prod",
       [](In& in) -> Out {
         return {in.a.prod(), in.a.amin(1), in.a.logsumexp(1)};
       }},
      {"cumsum",
       [](In& in) -> Out {
         return {in.a.cumsum(0), in.a.cumprod(1)};
       }},
      {"any",
       [](In& in) -> Out {
         return {in.mask.any(), in.mask.all(1)};
       }},
      {"sort",
       [](In& in) -> Out {
         auto [values, indices] = in.a.sort(1, true);
         return {values, indices, in.a.argsort(int64_t{0}, false)};
       }},
      {"topk",
       [](In& in) -> Out {
         auto [values, indices] = in.a.topk(2);
         return {values, indices};
       }},
      {"median", [](In& in) -> Out { return {in.a.median()}; }},
  };
}

std::vector<OperatorCase> indexing() {
  return {
      {"cat",
       [](In& in) -> Out {
         return {at::cat({in.a, in.b}, 1), at::stack({in.a, in.b})};
       }},
      {"gather", [](In& in) -> Out { return {in.a.gather(1, in.columns)}; }},
      {"scatter", [](In& in) -> Out { return {in.a.scatter(1, in.columns, in.b)}; }},
      {"scatter_add", [](In& in) -> Out { return {in.a.scatter_add(1, in.columns, in.b)}; }},
      {"index_select", [](In& in) -> Out { return {in.a.index_select(0, in.index)}; }},
      {"index_add", [](In& in) -> Out { return {in.a.index_add(0, in.index, in.b)}; }},
      {"index", [](In& in) -> Out { return {at::index(in.a, {in.index})}; }},
      {"index_from_cpu", [](In& in) -> Out { return {at::index(in.a, {at::arange(3)})}; }, true},
      {"index_put", [](In& in) -> Out { return {at::index_put(in.a, {in.index}, in.b, true)}; }},
      {"masked_fill", [](In& in) -> Out { return {in.a.masked_fill(in.mask, 9)}; }},
      {"flip",
       [](In& in) -> Out {
         return {in.a.flip(0), in.a.roll(1, 1), in.a.repeat({2, 1})};
       }},
      {"triu",
       [](In& in) -> Out {
         return {in.a.triu(), in.a.tril(1)};
       }},
      {"one_hot", [](In& in) -> Out { return {at::one_hot(in.index, 4)}; }},
      {"searchsorted", [](In& in) -> Out { return {at::searchsorted(std::get<0>(in.a[0].sort()), in.b)}; }},
      {"masked_select", [](In& in) -> Out { return {in.a.masked_select(in.mask)}; }, true},
      {"nonzero", [](In& in) -> Out { return {in.mask.nonzero()}; }, true},
      {"index_by_mask", [](In& in) -> Out { return {at::index(in.a, {in.mask})}; }, true},
      {"unique", [](In& in) -> Out { return {std::get<0>(at::_unique2(in.columns))}; }, true},
      {"bincount", [](In& in) -> Out { return {at::bincount(in.index)}; }, true},
      {"repeat_interleave", [](In& in) -> Out { return {in.b[0].repeat_interleave(in.columns[0])}; }, true},
      {"equal", [](In& in) -> Out { return {at::scalar_tensor(in.a.equal(in.a))}; }, true},
      {"item", [](In& in) -> Out { return {at::scalar_tensor(in.a[1][2].item<float>())}; }, true},
  };
}

std::vector<OperatorCase> factories() {
  return {
      {"zeros",
       [](In& in) -> Out {
         return {at::zeros({3}, in.a.options()), at::ones_like(in.a)};
       }},
      {"full",
       [](In& in) -> Out {
         return {at::full({2, 2}, 7.5, in.a.options())};
       }},
      {"arange", [](In& in) -> Out { return {at::arange(0, 5, 2, in.a.options())}; }},
      {"linspace", [](In& in) -> Out { return {at::linspace(0, 1, 7, in.a.options())}; }},
      {"eye", [](In& in) -> Out { return {at::eye(4, 5, in.a.options())}; }},
      {"tril_indices", [](In& in) -> Out { return {at::tril_indices(3, 4, 0, in.index.options())}; }},
      {"scalar_tensor", [](In& in) -> Out { return {at::scalar_tensor(2, in.a.options())}; }},
      {"new_tensors",
       [](In& in) -> Out {
         return {in.a.new_full({3}, 2), in.a.new_zeros({0, 4})};
       }},
      {"empty_input",
       [](In& in) -> Out {
         return {in.a.slice(0, 0, 0).sum(0), in.a.slice(0, 0, 0) + 1};
       }},
  };
}

}  // namespace

std::vector<OperatorCase> functional_cases() {
  std::vector<OperatorCase> all;
  for (auto& group : {elementwise(), algebra(), reductions(), indexing(), factories()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

}  // namespace gradwire
