#include "gradwire/autograd/optimizer/optimizer_archive.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/codec/tensor_set.h"
#include "gradwire/codec/torch/ivalue_codec.h"
#include "gradwire/codec/torch/tensor_codec.h"
#include "gradwire/transport/message.h"

namespace gradwire::autograd {
namespace {

// The keys that torch::optim::serialize uses.
constexpr char kVersionKey[] = "pytorch_version";
// The version that libtorch writes. It reads an archive without a version as one in its older format.
constexpr char kLibtorchVersion[] = "1.5.0";
constexpr char kStateKey[] = "state";
constexpr char kGroupsKey[] = "param_groups";
constexpr char kNumGroupsKey[] = "param_groups/size";
constexpr char kNumParametersKey[] = "params/size";
constexpr char kOptionsKey[] = "options";
std::string group_key(std::size_t group) { return absl::StrCat("param_groups/", group); }
std::string parameter_key(std::size_t parameter) { return absl::StrCat("params/", parameter); }

ArchiveTree read_tree(torch::serialize::InputArchive& archive) {
  ArchiveTree tree;
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    if (value.isModule()) {
      torch::serialize::InputArchive child;
      archive.read(key, child);
      tree.children.emplace(key, read_tree(child));
    } else {
      tree.values.emplace(key, std::move(value));
    }
  }
  return tree;
}

c10::IValue to_device(const c10::IValue& value, const at::Device& device) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().to(device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> moved;
    for (const at::Tensor& each : value.toTensorVector()) {
      moved.push_back(each.defined() ? each.to(device) : each);
    }
    return moved;
  }
  return value;
}

void write_tree(const ArchiveTree& tree, const at::Device& device, torch::serialize::OutputArchive& archive) {
  for (const auto& [key, value] : tree.values) archive.write(key, to_device(value, device));
  for (const auto& [key, child] : tree.children) {
    torch::serialize::OutputArchive nested(archive.compilation_unit());
    write_tree(child, device, nested);
    archive.write(key, nested);
  }
}

void write_number(const char* key, std::size_t number, torch::serialize::OutputArchive& archive) {
  archive.write(key, at::scalar_tensor(static_cast<int64_t>(number), at::kLong));
}

// Copies an archive that was written to one that can be read, through the bytes of a file. libtorch has no
// other way.
void copy_archive(torch::serialize::OutputArchive& from, torch::serialize::InputArchive& to,
                  std::optional<at::Device> device) {
  std::string bytes;
  from.save_to([&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  to.load_from(bytes.data(), bytes.size(), device);
}

const ArchiveTree* find_child(const ArchiveTree& tree, const std::string& key) {
  auto found = tree.children.find(key);
  return found == tree.children.end() ? nullptr : &found->second;
}

std::string address_of(const at::Tensor& parameter) {
  return absl::StrCat(reinterpret_cast<uintptr_t>(parameter.unsafeGetTensorImpl()));
}

}  // namespace

// libtorch has no interface for the state of one parameter, so the way is through its archive:
// 1. Save the optimizer to an archive, and read that into a tree on the CPU.
// 2. The tree has the options of each group. It has the state under the addresses of the parameters, which
//    are valid in this process only.
// 3. Store the state with its parameter, by position. A parameter without state, before the first step for
//    example, gets none.
SavedGroups take_apart(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive written;
  optimizer.save(written);
  torch::serialize::InputArchive archive;
  copy_archive(written, archive, at::Device(at::kCPU));
  const ArchiveTree tree = read_tree(archive);
  const ArchiveTree* state = find_child(tree, kStateKey);
  const ArchiveTree* options = find_child(tree, kGroupsKey);
  SavedGroups groups;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const ArchiveTree* own = options == nullptr ? nullptr : find_child(*options, group_key(groups.size()));
    own = own == nullptr ? nullptr : find_child(*own, kOptionsKey);
    if (own == nullptr || state == nullptr) {
      throw Error(absl::UnimplementedError(
          "cannot save the state of the optimizer: it must override save() and load() with "
          "torch::optim::serialize, as libtorch's optimizers do"));
    }
    SavedGroup& saved = groups.emplace_back();
    saved.options = *own;
    for (const at::Tensor& parameter : group.params()) {
      SavedParameter& each = saved.parameters.emplace_back();
      each.sizes = parameter.sizes().vec();
      each.dtype = parameter.scalar_type();
      if (const ArchiveTree* found = find_child(*state, address_of(parameter))) each.state = *found;
    }
  }
  return groups;
}

// The reverse of take_apart():
// 1. Check that groups and parameters fit.
// 2. Write an archive as libtorch would have, with numbers instead of addresses, and the state on the device
//    of its parameter.
// 3. Load it. If that fails, restore the state and the options from before.
void put_together(const SavedGroups& groups, torch::optim::Optimizer& optimizer) {
  auto& own_groups = optimizer.param_groups();
  bool same = groups.size() == own_groups.size();
  for (std::size_t g = 0; same && g < groups.size(); ++g) {
    same = groups[g].parameters.size() == own_groups[g].params().size();
  }
  if (!same) {
    throw Error(absl::InvalidArgumentError(absl::StrCat("cannot load the saved state: got ", groups.size(),
                                                        " groups, expected ", own_groups.size(),
                                                        " with the same numbers of parameters")));
  }

  torch::serialize::OutputArchive written;
  torch::serialize::OutputArchive state(written.compilation_unit());
  torch::serialize::OutputArchive options(written.compilation_unit());
  write_number(kNumGroupsKey, groups.size(), options);
  std::size_t number = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    torch::serialize::OutputArchive group(written.compilation_unit());
    write_number(kNumParametersKey, groups[g].parameters.size(), group);
    for (std::size_t p = 0; p < groups[g].parameters.size(); ++p) {
      // The key of the parameter within the archive. libtorch uses addresses, but any numbers are allowed.
      const std::string key = absl::StrCat(++number);
      group.write(parameter_key(p), c10::IValue(key));
      if (const auto& each = groups[g].parameters[p].state) {
        torch::serialize::OutputArchive nested(written.compilation_unit());
        write_tree(*each, own_groups[g].params()[p].device(), nested);
        state.write(key, nested);
      }
    }
    torch::serialize::OutputArchive nested(written.compilation_unit());
    write_tree(groups[g].options, at::Device(at::kCPU), nested);
    group.write(kOptionsKey, nested);
    options.write(group_key(g), group);
  }
  written.write(kVersionKey, c10::IValue(kLibtorchVersion));
  written.write(kStateKey, state);
  written.write(kGroupsKey, options);
  torch::serialize::InputArchive archive;
  copy_archive(written, archive, std::nullopt);

  // load() adds to the existing state and may throw before it has finished, so the old state is kept until
  // then.
  auto old_state = std::move(optimizer.state());
  optimizer.state() = {};
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> old_options;
  for (const auto& group : own_groups) old_options.push_back(group.options().clone());
  try {
    optimizer.load(archive);
  } catch (...) {
    optimizer.state() = std::move(old_state);
    for (std::size_t g = 0; g < own_groups.size(); ++g) own_groups[g].set_options(std::move(old_options[g]));
    throw;
  }
}

}  // namespace gradwire::autograd

namespace gradwire::rpc {

using autograd::ArchiveTree;
using autograd::SavedGroup;
using autograd::SavedParameter;

absl::Status Codec<ArchiveTree>::encode(const ArchiveTree& tree, Encoder& encoder, proto::Value& out) {
  proto::ValueList& list = *out.mutable_list();
  GRADWIRE_RETURN_IF_ERROR(encode_value<decltype(tree.values)>(tree.values, encoder, *list.add_values()));
  return encode_value<decltype(tree.children)>(tree.children, encoder, *list.add_values());
}

absl::StatusOr<ArchiveTree> Codec<ArchiveTree>::decode(const proto::Value& in, Decoder& decoder) {
  const proto::ValueList* list = elements_of(in);
  if (list == nullptr || list->values_size() != 2) return wrong_kind(type_name(), in);
  ArchiveTree tree;
  GRADWIRE_ASSIGN_OR_RETURN(tree.values, decode_value<decltype(tree.values)>(list->values(0), decoder));
  GRADWIRE_ASSIGN_OR_RETURN(tree.children, decode_value<decltype(tree.children)>(list->values(1), decoder));
  return tree;
}

absl::Status Codec<SavedParameter>::encode(const SavedParameter& parameter, Encoder& encoder,
                                           proto::Value& out) {
  return encode_value<std::tuple<std::vector<int64_t>, at::ScalarType, std::optional<ArchiveTree>>>(
      std::make_tuple(parameter.sizes, parameter.dtype, parameter.state), encoder, out);
}

absl::StatusOr<SavedParameter> Codec<SavedParameter>::decode(const proto::Value& in, Decoder& decoder) {
  GRADWIRE_ASSIGN_OR_RETURN(
      auto parts, (decode_value<std::tuple<std::vector<int64_t>, at::ScalarType, std::optional<ArchiveTree>>>(
                      in, decoder)));
  auto& [sizes, dtype, state] = parts;
  return SavedParameter{std::move(sizes), dtype, std::move(state)};
}

absl::Status Codec<SavedGroup>::encode(const SavedGroup& group, Encoder& encoder, proto::Value& out) {
  return encode_value<std::pair<ArchiveTree, std::vector<SavedParameter>>>(
      std::make_pair(group.options, group.parameters), encoder, out);
}

absl::StatusOr<SavedGroup> Codec<SavedGroup>::decode(const proto::Value& in, Decoder& decoder) {
  GRADWIRE_ASSIGN_OR_RETURN(auto parts,
                            (decode_value<std::pair<ArchiveTree, std::vector<SavedParameter>>>(in, decoder)));
  return SavedGroup{std::move(parts.first), std::move(parts.second)};
}

}  // namespace gradwire::rpc

// The bytes of a saved optimizer:
// "gradwire optimizer state 1\n"   the magic and the version of the format
// hash                             8 bytes, of everything that follows
// size, header                     a proto::Payload: the kind, the options, and descriptions of the tensors
// size, block                      for each buffer of the tensors
// Numbers have 8 bytes in the order of the machine. The hash detects damage, not forgery: what is read is
// checked as a message from a peer is.
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
