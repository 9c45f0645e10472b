// Reads the input as the values of a call with tensors (proto/value.proto): a byte with the number of
// buffers, for each buffer two bytes with its size and its bytes, and the payload. The first value is decoded
// as a tensor and as a value of TorchScript. libtorch itself is not instrumented, but the code that decodes
// is.

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_test_util.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/codec/torch/tensors/torch_tensors.h"
#include "gradwire/tests/fuzz/fuzzing.h"

namespace {

using gradwire::fuzzing::require;
namespace rpc = gradwire::rpc;
namespace transport = gradwire::transport;

// Memory as a connection provides it.
std::vector<transport::Buffer> buffers_of(gradwire::fuzzing::Input& input) {
  std::vector<transport::Buffer> buffers;
  for (uint64_t count = input.number(1) % 5; count > 0; --count) {
    const std::string bytes = input.text(input.number(2));
    auto memory = std::make_shared<std::vector<uint64_t>>(bytes.size() / 8 + 1);
    std::memcpy(memory->data(), bytes.data(), bytes.size());
    void* const data = memory->data();
    buffers.emplace_back(data, bytes.size(), std::move(memory));
  }
  return buffers;
}

// The elements of a tensor in plain memory are within that memory.
void check_plain(const at::Tensor& tensor) {
  require(tensor.storage_offset() >= 0, "a negative offset");
  if (tensor.numel() == 0) return;
  __int128 last = tensor.storage_offset();
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    require(tensor.size(i) > 0 && tensor.stride(i) >= 0, "a negative size or stride");
    last += static_cast<__int128>(tensor.size(i) - 1) * tensor.stride(i);
  }
  require((last + 1) * static_cast<__int128>(tensor.itemsize()) <=
              static_cast<__int128>(tensor.storage().nbytes()),
          "a tensor is larger than its memory");
}

// Kernels accept a decoded tensor, or throw.
void use(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (tensor.layout() == at::kStrided) check_plain(tensor);
  // The dense form of a sparse tensor may be large.
  if (tensor.numel() > 1 << 14) return;
  try {
    const at::Tensor plain = tensor.detach();
    plain.clone();
    if (tensor.is_quantized()) {
      plain.dequantize().sum();
    } else if (tensor.layout() != at::kStrided) {
      plain.to_dense().sum();
    } else {
      plain.sum();
      plain.contiguous();
    }
  } catch (const std::exception&) {
  }
}

absl::StatusOr<rpc::IncomingPayload> received(const std::string& payload,
                                              const std::vector<transport::Buffer>& buffers) {
  rpc::WireMessage wire{.payload = payload};
  // The receiver owns the memory, and a decoded tensor may change it.
  for (const transport::Buffer& buffer : buffers) {
    auto memory = std::make_shared<std::vector<uint64_t>>(buffer.size() / 8 + 1);
    std::memcpy(memory->data(), buffer.data(), buffer.size());
    void* const data = memory->data();
    wire.buffers.emplace_back(data, buffer.size(), std::move(memory));
  }
  return rpc::receive(std::move(wire));
}

// The number of bytes in the texts, and of elements, of a value of TorchScript.
std::size_t count(const c10::IValue& value) {
  std::size_t all = 1;
  if (value.isString()) all += value.toStringRef().size();
  if (value.isList()) {
    for (const c10::IValue& each : value.toList()) all += count(each);
  }
  if (value.isTuple()) {
    for (const c10::IValue& each : value.toTupleRef().elements()) all += count(each);
  }
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) all += count(entry.key()) + count(entry.value());
  }
  return all;
}

// A decoded value can be sent on, and arrives unchanged: it has the same encoding again.
void check_round_trip(const c10::IValue& value) {
  rpc::TestSender sender;
  // A value of libtorch's that cannot be sent, for example a dictionary with keys that differ only in type.
  if (!sender.add<c10::IValue>(value).ok()) return;
  const absl::StatusOr<rpc::WireMessage> wire = sender.finish();
  require(wire.ok(), "a decoded value cannot be sent");
  const absl::StatusOr<rpc::IncomingPayload> in = received(wire->payload, wire->buffers);
  require(in.ok(), "a value that was sent is refused");
  const absl::StatusOr<c10::IValue> again = rpc::decode_first<c10::IValue>(*in);
  require(again.ok(), "a decoded value does not survive a round trip");
  rpc::TestSender sender_again;
  require(sender_again.add<c10::IValue>(*again).ok(), "a value can be sent only once");
  require(sender_again.finish().ok() && sender_again.payload().values(0).SerializeAsString() ==
                                            sender.payload().values(0).SerializeAsString(),
          "a round trip changes a value");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  gradwire::fuzzing::Input input(data, size);
  const std::vector<transport::Buffer> buffers = buffers_of(input);
  const std::string payload = input.rest();
  const absl::StatusOr<rpc::IncomingPayload> in = received(payload, buffers);
  if (!in.ok()) {
    require(absl::IsInvalidArgument(in.status()), "an error that is not InvalidArgument");
    return 0;
  }
  const absl::StatusOr<at::Tensor> tensor = rpc::decode_first<at::Tensor>(*in);
  if (tensor.ok()) use(*tensor);
  // A tensor is taken out of the payload, so it is received once more.
  const absl::StatusOr<rpc::IncomingPayload> once_more = received(payload, buffers);
  require(once_more.ok(), "the same bytes are refused the second time");
  const absl::StatusOr<c10::IValue> value = rpc::decode_first<c10::IValue>(*once_more);
  if (value.ok()) {
    require(count(*value) <= 1 + 2 * size, "more was decoded than the input has");
    check_round_trip(*value);
  }
  return 0;
}
