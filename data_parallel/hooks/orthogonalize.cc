#include "gradwire/data_parallel/hooks/orthogonalize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <tuple>

namespace gradwire::data_parallel {
namespace {

void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    at::Tensor norm = at::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true) + epsilon;
    // A column of zeros would become NaN.
    norm.masked_fill_(norm == 0, 1);
    column.div_(norm);
    if (i + 1 == columns) break;
    at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum({1}, /*keepdim=*/true) * column);
  }
}

}  // namespace

void orthogonalize(at::Tensor matrices, double epsilon) {
  if (matrices.numel() == 0) return;
  const bool small = matrices.scalar_type() == at::kHalf || matrices.scalar_type() == at::kBFloat16;
  if (matrices.size(2) <= 2 || small) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

}  // namespace gradwire::data_parallel
