#pragma once

#include <ATen/core/Tensor.h>

namespace gradwire::data_parallel {

// Makes the columns of each matrix orthonormal, in place. `matrices`: [count, rows, columns] with at least as
// many rows as columns. With few columns, and for 16-bit numbers, by the Gram-Schmidt process, otherwise by a
// QR decomposition. A positive `epsilon` is added to the norm of each column. A column of zeros stays zero.
void orthogonalize(at::Tensor matrices, double epsilon);

}  // namespace gradwire::data_parallel
