// The bytes of a saved optimizer:
// "gradwire optimizer state 1\n"   the magic and the version of the format
// hash                             8 bytes, of everything that follows
// size, header                     a proto::Payload: the kind, the options, and descriptions of the tensors
// size, block                      for each buffer of the tensors
// Numbers have 8 bytes in the order of the machine. The hash detects damage, not forgery: what is read is
// checked as a message from a peer is.

#include "gradwire/autograd/optimizer/optimizer_file.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/transport/message.h"

namespace gradwire::autograd {
namespace {

constexpr absl::string_view kMagic = "gradwire optimizer state ";
constexpr absl::string_view kVersion = "1\n";
using Value = std::pair<std::string, SavedGroups>;

void append_number(uint64_t number, std::string& out) {
  out.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

absl::Status invalid(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read the saved state of a DistributedOptimizer: ", what));
}

absl::Status cut_short() { return invalid("the bytes end too early"); }

bool take_number(absl::string_view& bytes, uint64_t& number) {
  if (bytes.size() < sizeof(number)) return false;
  std::memcpy(&number, bytes.data(), sizeof(number));
  bytes.remove_prefix(sizeof(number));
  return true;
}

// Takes a size and then a block of that size.
bool take_block(absl::string_view& bytes, absl::string_view& block) {
  uint64_t size;
  if (!take_number(bytes, size) || size > bytes.size()) return false;
  block = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return true;
}

// Copies the block to memory that is aligned for tensors.
transport::Buffer copy(absl::string_view block) {
  constexpr std::align_val_t kAlignment{64};
  std::shared_ptr<void> memory(::operator new(block.size(), kAlignment),
                               [](void* data) { ::operator delete(data, kAlignment); });
  std::memcpy(memory.get(), block.data(), block.size());
  return transport::Buffer(memory.get(), block.size(), memory);
}

}  // namespace

absl::StatusOr<std::string> write_optimizer_file(const OptimizerFile& file) {
  proto::Payload payload;
  rpc::Encoder encoder(payload, nullptr);
  GRADWIRE_RETURN_IF_ERROR(
      rpc::encode_value<Value>(std::make_pair(file.kind, file.groups), encoder, *payload.add_values()));
  std::vector<transport::Buffer> buffers;
  if (std::unique_ptr<rpc::TensorSet> tensors = encoder.take_tensors()) {
    GRADWIRE_RETURN_IF_ERROR(
        rpc::tensor_backend()->encode(*tensors, rpc::TensorSharing::kBorrow, payload, buffers));
  }
  std::string body;
  append_number(payload.ByteSizeLong(), body);
  if (!payload.AppendToString(&body)) {
    return absl::ResourceExhaustedError(
        "cannot write the state of the optimizer: the description of its parameters is larger than 2 GiB");
  }
  for (const transport::Buffer& buffer : buffers) {
    append_number(buffer.size(), body);
    body.append(static_cast<const char*>(buffer.data()), buffer.size());
  }
  std::string bytes = absl::StrCat(kMagic, kVersion);
  append_number(stable_hash(body), bytes);
  bytes.append(body);
  return bytes;
}

absl::StatusOr<OptimizerFile> read_optimizer_file(absl::string_view bytes) {
  if (!absl::ConsumePrefix(&bytes, kMagic)) {
    return invalid(absl::StrCat("expected bytes that begin with \"", kMagic, "\""));
  }
  if (!absl::ConsumePrefix(&bytes, kVersion)) {
    return invalid("the format version is not supported; another version of Gradwire wrote the bytes");
  }
  uint64_t hash;
  if (!take_number(bytes, hash)) return cut_short();
  if (hash != stable_hash(bytes)) return invalid("hash mismatch: the bytes were changed or cut off");
  absl::string_view header;
  if (!take_block(bytes, header)) return cut_short();
  proto::Payload payload;
  if (header.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()) ||
      !payload.ParseFromArray(header.data(), static_cast<int>(header.size())) || payload.values_size() != 1) {
    return invalid("the description of the parameters cannot be parsed");
  }
  std::vector<transport::Buffer> buffers;
  while (!bytes.empty()) {
    absl::string_view block;
    if (!take_block(bytes, block)) return cut_short();
    buffers.push_back(copy(block));
  }
  absl::StatusOr<std::unique_ptr<rpc::TensorSet>> tensors =
      rpc::tensor_backend()->decode(payload, std::move(buffers));
  if (!tensors.ok()) return invalid(tensors.status().message());
  const std::vector<std::shared_ptr<rpc::RRefHandle>> no_references;
  rpc::Decoder decoder(payload, tensors->get(), no_references);
  absl::StatusOr<Value> value = rpc::decode_value<Value>(payload.values(0), decoder);
  if (!value.ok()) return invalid(value.status().message());
  return OptimizerFile{std::move(value->first), std::move(value->second)};
}

}  // namespace gradwire::autograd
