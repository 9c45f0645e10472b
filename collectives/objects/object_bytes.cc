#include "gradwire/collectives/objects/object_bytes.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/transport/message.h"

namespace gradwire::collectives {
namespace {

// Reads the encoded form. Its layout: the number of pieces, the size of each piece, then the pieces. The
// first piece is the payload; the others are the memory of tensors. Numbers have 64 bits in the machine's
// byte order, as the elements of tensors do.
class Reader {
 public:
  explicit Reader(absl::Span<const char> bytes) : bytes_(bytes) {}

  absl::StatusOr<uint64_t> number() {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::Span<const char> piece, take(sizeof(uint64_t)));
    uint64_t value = 0;
    std::memcpy(&value, piece.data(), sizeof(value));
    return value;
  }
  absl::StatusOr<absl::Span<const char>> take(uint64_t size) {
    if (size > bytes_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot decode an object: got ", bytes_.size(),
                                                     " more bytes, expected at least ", size));
    }
    const absl::Span<const char> piece = bytes_.first(size);
    bytes_.remove_prefix(size);
    return piece;
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  absl::Span<const char> bytes_;
};

// The maximum number of pieces of one object: its payload, and one piece for each large tensor.
constexpr uint64_t kMaxPieces = 65'537;
// A larger payload is refused without parsing it.
constexpr std::size_t kMaxPayloadBytes = std::size_t{1} << 30;

// Copies a piece into memory that the decoded tensors keep alive.
transport::Buffer copy_of(absl::Span<const char> piece) {
  std::shared_ptr<void> memory(::operator new (piece.size(), std::align_val_t{64}),
                               [](void* data) { ::operator delete (data, std::align_val_t{64}); });
  std::memcpy(memory.get(), piece.data(), piece.size());
  return transport::Buffer(memory.get(), piece.size(), memory);
}

}  // namespace

absl::StatusOr<at::Tensor> pack_payload(rpc::Encoder& encoder) {
  std::vector<transport::Buffer> buffers;
  if (const std::unique_ptr<rpc::TensorSet> tensors = encoder.take_tensors()) {
    GRADWIRE_RETURN_IF_ERROR(
        rpc::tensor_backend()->encode(*tensors, rpc::TensorSharing::kBorrow, encoder.payload(), buffers));
  }
  std::string payload;
  if (!encoder.payload().SerializeToString(&payload)) {
    return absl::InvalidArgumentError("cannot encode an object: it is too large for a message");
  }
  std::vector<uint64_t> sizes = {buffers.size() + 1, payload.size()};
  uint64_t total = payload.size();
  for (const transport::Buffer& buffer : buffers) {
    sizes.push_back(buffer.size());
    total += buffer.size();
  }
  total += sizes.size() * sizeof(uint64_t);
  // The caller may be in inference mode, and the bytes are used on another thread outside of it.
  const c10::InferenceMode ordinary(false);
  at::Tensor bytes = at::empty({static_cast<int64_t>(total)}, at::kByte);
  char* out = static_cast<char*>(bytes.mutable_data_ptr());
  const auto append = [&out](const void* data, std::size_t size) {
    if (size != 0) std::memcpy(out, data, size);
    out += size;
  };
  append(sizes.data(), sizes.size() * sizeof(uint64_t));
  append(payload.data(), payload.size());
  for (const transport::Buffer& buffer : buffers) append(buffer.data(), buffer.size());
  return bytes;
}

absl::StatusOr<rpc::IncomingPayload> unpack_payload(const at::Tensor& bytes) {
  Reader reader({static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())});
  GRADWIRE_ASSIGN_OR_RETURN(const uint64_t pieces, reader.number());
  // The bytes come from another process. The number of pieces is compared with the bytes that are left, so
  // that a wrong number cannot cause a large allocation.
  if (pieces == 0 || pieces > kMaxPieces || pieces > reader.left() / sizeof(uint64_t)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot decode an object: invalid number of pieces: ", pieces));
  }
  std::vector<uint64_t> sizes;
  for (uint64_t i = 0; i < pieces; ++i) {
    GRADWIRE_ASSIGN_OR_RETURN(const uint64_t size, reader.number());
    sizes.push_back(size);
  }
  GRADWIRE_ASSIGN_OR_RETURN(const absl::Span<const char> serialized, reader.take(sizes[0]));
  auto payload = std::make_shared<proto::Payload>();
  // Also keeps the size within an int, which ParseFromArray() takes.
  if (serialized.size() > kMaxPayloadBytes ||
      !payload->ParseFromArray(serialized.data(), static_cast<int>(serialized.size())) ||
      payload->values_size() != 1) {
    return absl::InvalidArgumentError("cannot decode an object: malformed payload");
  }
  if (payload->references_size() != 0)
    return absl::InvalidArgumentError("cannot decode an object: a collective cannot carry an RRef");
  std::vector<transport::Buffer> buffers;
  for (uint64_t i = 1; i < pieces; ++i) {
    GRADWIRE_ASSIGN_OR_RETURN(const absl::Span<const char> piece, reader.take(sizes[i]));
    buffers.push_back(copy_of(piece));
  }
  rpc::IncomingPayload in;
  if (payload->tensors_size() != 0) {
    GRADWIRE_ASSIGN_OR_RETURN(in.tensors, rpc::tensor_backend()->decode(*payload, std::move(buffers)));
  }
  in.payload = std::move(payload);
  return in;
}

}  // namespace gradwire::collectives
