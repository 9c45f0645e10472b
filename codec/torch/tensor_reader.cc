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

}  // namespace gradwire::rpc
