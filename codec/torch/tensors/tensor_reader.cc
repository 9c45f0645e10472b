#include "gradwire/codec/torch/tensors/tensor_reader.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_make_per_channel_quantized_tensor.h>
#include <ATen/ops/_make_per_tensor_quantized_tensor.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_sparse_csr_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <ATen/ops/_validate_sparse_csr_tensor_args.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensors/tensor_layout.h"
#include "gradwire/codec/torch/tensors/tensor_memory.h"

namespace gradwire::rpc {
namespace {

constexpr std::size_t kDataAlignment = 64;

absl::Status wrong_size(std::size_t needed, std::size_t given) {
  return absl::InvalidArgumentError(absl::StrCat("wrong size of its data: got ", given, " bytes, expected ",
                                                 needed, " (0 bytes: another tensor has used the buffer)"));
}

}  // namespace

absl::StatusOr<at::ScalarType> checked_dtype(uint32_t number) {
  if (number >= static_cast<uint32_t>(at::ScalarType::NumOptions) ||
      number == static_cast<uint32_t>(at::ScalarType::Undefined)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype: got the number ", number));
  }
  return static_cast<at::ScalarType>(number);
}

// The dtype of a tensor of the message, which is not a component of another one.
absl::StatusOr<at::ScalarType> dtype_of(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, checked_dtype(in.dtype()));
  if (in.kind() != proto::Tensor::QUANTIZED && c10::isQIntType(dtype)) {
    return absl::InvalidArgumentError("its dtype is quantized but its kind is not");
  }
  // libtorch throws for such a tensor.
  if (in.requires_grad() && !c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("its dtype ", c10::toString(dtype), " cannot require grad"));
  }
  return dtype;
}

// The description comes from the peer. libtorch checks little of it and aborts or reads beyond the memory
// if it is wrong. So everything that libtorch would rely on is checked here first.
absl::StatusOr<at::Tensor> TensorReader::read(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, dtype_of(in));
  switch (in.kind()) {
    case proto::Tensor::STRIDED:
      return read_strided(in, dtype, /*checked=*/dtype == at::kBool);
    case proto::Tensor::SPARSE_COO:
      return read_sparse_coo(in, dtype);
    case proto::Tensor::SPARSE_CSR:
      return read_sparse_csr(in, dtype);
    case proto::Tensor::QUANTIZED:
      return read_quantized(in, dtype);
    default:
      return absl::InvalidArgumentError(absl::StrCat("unknown kind of tensor: got the number ", in.kind()));
  }
}

bool TensorReader::has_pieces(const proto::Tensor& in) {
  return in.kind() == proto::Tensor::STRIDED && in.on_device().buffers() > 1 &&
         in.dtype() != static_cast<uint32_t>(at::kBool);
}

absl::StatusOr<TensorPieces> TensorReader::read_pieces(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, dtype_of(in));
  const std::size_t element = c10::elementSize(dtype);
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent, checked_extent(in.sizes(), static_cast<int64_t>(element)));
  if (extent.numel == 0) return absl::InvalidArgumentError("it has no elements, but it has data");
  if (in.strides_size() != 0) GRADWIRE_RETURN_IF_ERROR(check_dense(in.sizes(), in.strides(), extent.numel));
  GRADWIRE_ASSIGN_OR_RETURN(auto buffers, take_buffers(in, static_cast<std::size_t>(extent.bytes), element));
  return TensorPieces{dtype,
                      {in.sizes().begin(), in.sizes().end()},
                      {in.strides().begin(), in.strides().end()},
                      std::move(buffers)};
}

absl::StatusOr<at::Tensor> TensorReader::read_strided(const proto::Tensor& in, at::ScalarType dtype,
                                                      bool checked) {
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(in.sizes(), static_cast<int64_t>(c10::elementSize(dtype))));
  const at::IntArrayRef sizes(in.sizes().data(), in.sizes().size());
  if (extent.numel == 0) {
    if (in.buffer() != 0 || !in.inline_data().empty() || in.strides_size() != 0) {
      return absl::InvalidArgumentError("it has no elements, but it has data or strides");
    }
    return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  }
  if (in.strides_size() != 0) GRADWIRE_RETURN_IF_ERROR(check_dense(in.sizes(), in.strides(), extent.numel));
  const at::IntArrayRef strides(in.strides().data(), in.strides().size());
  if (in.buffer() == 0) return read_inline(in, dtype, static_cast<std::size_t>(extent.bytes));
  GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer memory,
                            take_bytes(in, static_cast<std::size_t>(extent.bytes), checked));
  // A bool with another value than 0 or 1 is undefined behaviour in the code that reads it. `checked` has
  // made sure that the sender cannot change the bytes after this check.
  if (dtype == at::kBool) GRADWIRE_RETURN_IF_ERROR(check_bools(memory.data(), memory.size()));
  return tensor_over(std::move(memory), sizes, strides, dtype);
}

absl::StatusOr<at::Tensor> TensorReader::read_inline(const proto::Tensor& in, at::ScalarType dtype,
                                                     std::size_t size) {
  const std::string& data = in.inline_data();
  // Small tensors are copied: the envelope is freed after decoding.
  if (data.size() != size) return wrong_size(size, data.size());
  if (dtype == at::kBool) GRADWIRE_RETURN_IF_ERROR(check_bools(data.data(), data.size()));
  GRADWIRE_ASSIGN_OR_RETURN(c10::DataPtr memory, small_tensor_memory(size));
  std::memcpy(memory.get(), data.data(), size);
  return tensor_over(std::move(memory), size, at::IntArrayRef(in.sizes().data(), in.sizes().size()),
                     at::IntArrayRef(in.strides().data(), in.strides().size()), dtype);
}

absl::StatusOr<at::Tensor> TensorReader::read_part(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, checked_dtype(in.dtype()));
  if (in.kind() != proto::Tensor::STRIDED || in.strides_size() != 0 || in.parts_size() != 0 ||
      in.requires_grad() || in.on_device().buffers() > 1 || c10::isQIntType(dtype)) {
    return absl::InvalidArgumentError("one of its parts is not a plain row-major tensor");
  }
  return read_strided(in, dtype, /*checked=*/true);
}

absl::StatusOr<transport::Buffer> TensorReader::take_bytes(const proto::Tensor& in, std::size_t size,
                                                           bool checked) {
  if (in.buffer() > buffers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("it refers to buffer ", in.buffer(),
                                                   ", but the message has ", buffers_.size(), " buffers"));
  }
  if (!in.inline_data().empty()) return absl::InvalidArgumentError("it has both inline data and a buffer");
  if (in.on_device().buffers() > 1) {
    GRADWIRE_ASSIGN_OR_RETURN(const auto pieces, take_buffers(in, size, /*element=*/1));
    GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer whole, allocate_tensor_memory(size));
    char* next = static_cast<char*>(whole.data());
    for (const transport::Buffer& piece : pieces) {
      std::memcpy(next, piece.data(), piece.size());
      next += piece.size();
    }
    return whole;
  }
  // The buffer is replaced by an empty one, so that a second tensor that refers to it is refused below.
  const transport::Buffer buffer = std::exchange(buffers_[in.buffer() - 1], transport::Buffer());
  const std::size_t given = buffer.data() == nullptr ? 0 : buffer.size();
  if (given != size) return wrong_size(size, given);
  // Use the received memory if possible. Copy it if libtorch's alignment is missing, or if the content will
  // be checked while the sender could still change it.
  const bool private_enough = !checked || buffer.sharing() != transport::Buffer::Sharing::kForeign;
  if (private_enough && reinterpret_cast<uintptr_t>(buffer.data()) % kDataAlignment == 0) return buffer;
  GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer copy, allocate_tensor_memory(size));
  std::memcpy(copy.data(), buffer.data(), size);
  return copy;
}

// The sizes are added up as they are taken, so they cannot overflow: none is larger than what is missing.
absl::StatusOr<std::vector<transport::Buffer>> TensorReader::take_buffers(const proto::Tensor& in,
                                                                          std::size_t size,
                                                                          std::size_t element) {
  if (!in.inline_data().empty()) return absl::InvalidArgumentError("it has both inline data and buffers");
  if (in.buffer() == 0 || in.buffer() - 1 > buffers_.size() ||
      in.on_device().buffers() > buffers_.size() - (in.buffer() - 1)) {
    return absl::InvalidArgumentError(absl::StrCat("it refers to ", in.on_device().buffers(),
                                                   " buffers from ", in.buffer(), " on, but the message has ",
                                                   buffers_.size(), " buffers"));
  }
  std::vector<transport::Buffer> taken;
  std::size_t missing = size;
  for (std::size_t i = 0; i < in.on_device().buffers(); ++i) {
    transport::Buffer buffer = std::exchange(buffers_[in.buffer() - 1 + i], transport::Buffer());
    if (buffer.data() == nullptr || buffer.size() > missing || buffer.size() % element != 0)
      return wrong_size(size, size - missing + buffer.size());
    missing -= buffer.size();
    taken.push_back(std::move(buffer));
  }
  if (missing != 0) return wrong_size(size, size - missing);
  return taken;
}

// Reads tensors that consist of other tensors: sparse and quantized ones. libtorch's kernels trust their
// content, so all of it is checked here.

namespace {

// Checks that there are `count` parts, and no data of its own besides them for a sparse tensor.
absl::Status expect_parts(const proto::Tensor& in, int count) {
  if (in.parts_size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", in.parts_size(), " parts, expected ", count));
  }
  if (in.kind() != proto::Tensor::QUANTIZED &&
      (in.buffer() != 0 || !in.inline_data().empty() || in.strides_size() != 0)) {
    return absl::InvalidArgumentError("it is sparse but has data or strides besides its parts");
  }
  return absl::OkStatus();
}

// Whether each column of the row-major [dims, nnz] indices is greater than the one before, in lexicographic
// order.
bool is_strictly_ascending(const at::Tensor& indices) {
  const int64_t dims = indices.size(0);
  const int64_t nnz = indices.size(1);
  const auto* data = indices.const_data_ptr<int64_t>();
  for (int64_t column = 1; column < nnz; ++column) {
    int64_t row = 0;
    while (row < dims && data[row * nnz + column - 1] == data[row * nnz + column]) ++row;
    if (row == dims || data[row * nnz + column - 1] > data[row * nnz + column]) return false;
  }
  return true;
}

// Checks the [dims, nnz] indices against sizes[0..dims).
absl::Status check_indices(const at::Tensor& indices, at::IntArrayRef sizes) {
  const int64_t nnz = indices.size(1);
  const auto* data = indices.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < indices.size(0); ++row) {
    for (int64_t i = 0; i < nnz; ++i) {
      if (data[row * nnz + i] < 0 || data[row * nnz + i] >= sizes[row]) {
        return absl::InvalidArgumentError(absl::StrCat("the index ", data[row * nnz + i],
                                                       " is out of range for dimension ", row, " of size ",
                                                       sizes[row]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status check_scale(double scale) {
  // Kernels divide by the scale as a float.
  if (!std::isfinite(scale) || static_cast<float>(scale) <= 0 || !std::isfinite(static_cast<float>(scale))) {
    return absl::InvalidArgumentError(absl::StrCat("its scale must be positive and finite, got ", scale));
  }
  return absl::OkStatus();
}

absl::Status check_zero_point(int64_t zero_point, at::ScalarType dtype) {
  int64_t low = 0;
  int64_t high = 255;
  if (dtype == at::kQInt8) {
    low = -128;
    high = 127;
  } else if (dtype == at::kQInt32) {
    low = std::numeric_limits<int32_t>::min();
    high = std::numeric_limits<int32_t>::max();
  }
  if (zero_point < low || zero_point > high) {
    return absl::InvalidArgumentError(absl::StrCat("its zero point ", zero_point, " is out of range"));
  }
  return absl::OkStatus();
}

}  // namespace

// The checks are in this order, because each relies on the one before:
// 1. The number of parts, and that the sizes do not overflow.
// 2. The parts, which are plain tensors; their bytes cannot be changed by the sender any more.
// 3. Types and shapes of the parts.
// 4. The content: each index is in range, and a tensor that claims to be coalesced is sorted without
//    duplicates.
absl::StatusOr<at::Tensor> TensorReader::read_sparse_coo(const proto::Tensor& in, at::ScalarType dtype) {
  GRADWIRE_RETURN_IF_ERROR(expect_parts(in, 2));
  GRADWIRE_RETURN_IF_ERROR(
      checked_extent(in.sizes(), static_cast<int64_t>(c10::elementSize(dtype))).status());
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor indices, read_part(in.parts(0)));
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor values, read_part(in.parts(1)));
  const at::IntArrayRef sizes(in.sizes().data(), in.sizes().size());
  if (indices.scalar_type() != at::kLong || indices.dim() != 2 || values.scalar_type() != dtype ||
      values.dim() < 1 || indices.size(1) != values.size(0) ||
      indices.size(0) + values.dim() - 1 != static_cast<int64_t>(sizes.size()) ||
      values.sizes().slice(1) != sizes.slice(indices.size(0))) {
    return absl::InvalidArgumentError("its indices, values and sizes do not match");
  }
  GRADWIRE_RETURN_IF_ERROR(check_indices(indices, sizes));
  if (in.coalesced() && !is_strictly_ascending(indices)) {
    return absl::InvalidArgumentError("it is marked as coalesced but its indices are not ascending");
  }
  // libtorch's own checks. They throw; the caller converts the exception.
  at::_validate_sparse_coo_tensor_args(indices, values, sizes);
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse),
                                       in.coalesced());
}

absl::StatusOr<at::Tensor> TensorReader::read_sparse_csr(const proto::Tensor& in, at::ScalarType dtype) {
  GRADWIRE_RETURN_IF_ERROR(expect_parts(in, 3));
  GRADWIRE_RETURN_IF_ERROR(
      checked_extent(in.sizes(), static_cast<int64_t>(c10::elementSize(dtype))).status());
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor crow, read_part(in.parts(0)));
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor columns, read_part(in.parts(1)));
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor values, read_part(in.parts(2)));
  if ((crow.scalar_type() != at::kLong && crow.scalar_type() != at::kInt) ||
      columns.scalar_type() != crow.scalar_type() || values.scalar_type() != dtype || in.sizes_size() < 2 ||
      crow.dim() < 1 || columns.dim() != crow.dim() || values.dim() < columns.dim()) {
    return absl::InvalidArgumentError("its row pointers, columns, values and sizes do not match");
  }
  // 32-bit indices cannot represent larger sizes.
  if (crow.scalar_type() == at::kInt) {
    for (int64_t size : in.sizes()) {
      if (size > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("its indices have 32 bits, which is too few for a size of ", size));
      }
    }
  }
  const at::IntArrayRef sizes(in.sizes().data(), in.sizes().size());
  // This checks the shapes, that the row pointers ascend from 0 to the number of columns, and that the
  // columns of each row are in range, ascending and distinct.
  at::_validate_sparse_csr_tensor_args(crow, columns, values, sizes);
  return at::_sparse_csr_tensor_unsafe(crow, columns, values, sizes, values.options().layout(at::kSparseCsr));
}

absl::StatusOr<at::Tensor> TensorReader::read_quantized(const proto::Tensor& in, at::ScalarType dtype) {
  if (dtype != at::kQInt8 && dtype != at::kQUInt8 && dtype != at::kQInt32) {
    return absl::InvalidArgumentError(
        absl::StrCat("its dtype ", c10::toString(dtype), " is not supported for quantized tensors"));
  }
  GRADWIRE_RETURN_IF_ERROR(expect_parts(in, in.quantization().channel_axis() == 0 ? 0 : 2));
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor integers, read_strided(in, c10::toUnderlying(dtype), false));
  if (in.quantization().channel_axis() == 0) {
    GRADWIRE_RETURN_IF_ERROR(check_scale(in.quantization().scale()));
    GRADWIRE_RETURN_IF_ERROR(check_zero_point(in.quantization().zero_point(), dtype));
    return at::_make_per_tensor_quantized_tensor(integers, in.quantization().scale(),
                                                 in.quantization().zero_point());
  }
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor scales, read_part(in.parts(0)));
  GRADWIRE_ASSIGN_OR_RETURN(at::Tensor zero_points, read_part(in.parts(1)));
  const int64_t axis = int64_t{in.quantization().channel_axis()} - 1;
  if (axis >= integers.dim() || scales.scalar_type() != at::kDouble || scales.dim() != 1 ||
      zero_points.scalar_type() != at::kLong || zero_points.dim() != 1 ||
      scales.size(0) != integers.size(axis) || zero_points.size(0) != integers.size(axis)) {
    return absl::InvalidArgumentError("its channel axis, scales and zero points do not match its sizes");
  }
  for (int64_t i = 0; i < scales.size(0); ++i) {
    GRADWIRE_RETURN_IF_ERROR(check_scale(scales.const_data_ptr<double>()[i]));
    GRADWIRE_RETURN_IF_ERROR(check_zero_point(zero_points.const_data_ptr<int64_t>()[i], dtype));
  }
  return at::_make_per_channel_quantized_tensor(integers, scales, zero_points, axis);
}

}  // namespace gradwire::rpc
