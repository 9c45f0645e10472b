#include "gradwire/codec/torch/tensor_reader.h"

#include <ATen/EmptyTensor.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/torch/tensor_layout.h"
#include "gradwire/codec/torch/tensor_memory.h"

namespace gradwire::rpc {
namespace {

constexpr std::size_t kAlignment = 64;

absl::StatusOr<at::ScalarType> known_dtype(uint32_t number) {
  if (number >= static_cast<uint32_t>(at::ScalarType::NumOptions) ||
      number == static_cast<uint32_t>(at::ScalarType::Undefined)) {
    return absl::InvalidArgumentError(absl::StrCat("there is no dtype with the number ", number));
  }
  return static_cast<at::ScalarType>(number);
}

absl::Status wrong_size(std::size_t needed, std::size_t given) {
  return absl::InvalidArgumentError(absl::StrCat("it needs ", needed, " bytes and ", given,
                                                 " came (or its buffer belongs to another tensor)"));
}

}  // namespace

absl::StatusOr<at::Tensor> TensorReader::read(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, known_dtype(in.dtype()));
  if (in.kind() != proto::Tensor::QUANTIZED && c10::isQIntType(dtype)) {
    return absl::InvalidArgumentError("its dtype is quantized but its kind is not");
  }
  if (in.requires_grad() && !c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of dtype ", c10::toString(dtype), " cannot require grad"));
  }
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
      return absl::InvalidArgumentError(
          absl::StrCat("there is no kind of tensor with the number ", in.kind()));
  }
}

absl::StatusOr<at::Tensor> TensorReader::read_strided(const proto::Tensor& in, at::ScalarType dtype,
                                                      bool checked) {
  GRADWIRE_ASSIGN_OR_RETURN(TensorExtent extent,
                            checked_extent(in.sizes(), static_cast<int64_t>(c10::elementSize(dtype))));
  const at::IntArrayRef sizes(in.sizes().data(), in.sizes().size());
  if (extent.numel == 0) {
    if (in.buffer() != 0 || !in.inline_data().empty() || in.strides_size() != 0) {
      return absl::InvalidArgumentError("it has no elements but data or strides");
    }
    return at::Tensor(at::detail::empty_cpu(sizes, dtype));
  }
  if (in.strides_size() != 0) GRADWIRE_RETURN_IF_ERROR(check_dense(in.sizes(), in.strides(), extent.numel));
  const at::IntArrayRef strides(in.strides().data(), in.strides().size());
  if (in.buffer() == 0) return read_inline(in, dtype, static_cast<std::size_t>(extent.bytes));
  GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer memory,
                            take_bytes(in, static_cast<std::size_t>(extent.bytes), checked));
  if (dtype == at::kBool) GRADWIRE_RETURN_IF_ERROR(check_bools(memory.data(), memory.size()));
  return tensor_over(std::move(memory), sizes, strides, dtype);
}

absl::StatusOr<at::Tensor> TensorReader::read_inline(const proto::Tensor& in, at::ScalarType dtype,
                                                     std::size_t size) {
  const std::string& data = in.inline_data();
  if (data.size() != size) return wrong_size(size, data.size());
  if (dtype == at::kBool) GRADWIRE_RETURN_IF_ERROR(check_bools(data.data(), data.size()));
  GRADWIRE_ASSIGN_OR_RETURN(c10::DataPtr memory, small_tensor_memory(size));
  std::memcpy(memory.get(), data.data(), size);
  return tensor_over(std::move(memory), size, at::IntArrayRef(in.sizes().data(), in.sizes().size()),
                     at::IntArrayRef(in.strides().data(), in.strides().size()), dtype);
}

absl::StatusOr<at::Tensor> TensorReader::read_part(const proto::Tensor& in) {
  GRADWIRE_ASSIGN_OR_RETURN(at::ScalarType dtype, known_dtype(in.dtype()));
  if (in.kind() != proto::Tensor::STRIDED || in.strides_size() != 0 || in.parts_size() != 0 ||
      in.requires_grad() || c10::isQIntType(dtype)) {
    return absl::InvalidArgumentError("one of its parts is not a plain row-major tensor");
  }
  return read_strided(in, dtype, /*checked=*/true);
}

absl::StatusOr<transport::Buffer> TensorReader::take_bytes(const proto::Tensor& in, std::size_t size,
                                                           bool checked) {
  if (in.buffer() > buffers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("its data is buffer ", in.buffer(), " of a message that has ", buffers_.size()));
  }
  if (!in.inline_data().empty()) return absl::InvalidArgumentError("it has both inline data and a buffer");
  // What remains has no memory, so that a second tensor that names it is refused below.
  const transport::Buffer buffer = std::exchange(buffers_[in.buffer() - 1], transport::Buffer());
  const std::size_t given = buffer.data() == nullptr ? 0 : buffer.size();
  if (given != size) return wrong_size(size, given);
  const bool private_enough = !checked || buffer.sharing() != transport::Buffer::Sharing::kForeign;
  if (private_enough && reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment == 0) return buffer;
  GRADWIRE_ASSIGN_OR_RETURN(transport::Buffer copy, allocate_tensor_memory(size));
  std::memcpy(copy.data(), buffer.data(), size);
  return copy;
}

}  // namespace gradwire::rpc
