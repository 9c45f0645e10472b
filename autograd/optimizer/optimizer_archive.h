#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/codec/codec.h"

// The state of an optimizer, separated by parameter group and parameter. libtorch's own archives identify a
// parameter by its address; this form also fits parameters that have other addresses or owners next time.
namespace gradwire::autograd {

// The content of a torch::serialize archive as plain values.
struct ArchiveTree {
  std::map<std::string, c10::IValue> values;
  std::map<std::string, ArchiveTree> children;
};

// One parameter of a group, and its state.
struct SavedParameter {
  // The sizes and the dtype of the parameter, not of its state.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  // nullopt if the parameter has never been stepped.
  std::optional<ArchiveTree> state;
};

struct SavedGroup {
  ArchiveTree options;
  std::vector<SavedParameter> parameters;
};

using SavedGroups = std::vector<SavedGroup>;

// Returns the options of each group of `optimizer` and the state of each of its parameters, copied to the
// CPU. Throws Error, Unimplemented, if the optimizer does not save itself with torch::optim::serialize, as
// libtorch's optimizers do. Also throws what its save() throws.
SavedGroups take_apart(const torch::optim::Optimizer& optimizer);

// Replaces the options and states of `optimizer`; states are put on the devices of its parameters. After an
// exception the optimizer is unchanged. `groups` need not be trusted: throws Error, InvalidArgument, if the
// number of groups or parameters differs from the optimizer's. Also throws what its load() throws.
void put_together(const SavedGroups& groups, torch::optim::Optimizer& optimizer);

}  // namespace gradwire::autograd

namespace gradwire::rpc {

template <>
struct Codec<autograd::ArchiveTree> {
  static std::string type_name() { return "gradwire::autograd::ArchiveTree"; }
  static absl::Status encode(const autograd::ArchiveTree& tree, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<autograd::ArchiveTree> decode(const proto::Value& in, Decoder& decoder);
};

template <>
struct Codec<autograd::SavedParameter> {
  static std::string type_name() { return "gradwire::autograd::SavedParameter"; }
  static absl::Status encode(const autograd::SavedParameter& parameter, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<autograd::SavedParameter> decode(const proto::Value& in, Decoder& decoder);
};

template <>
struct Codec<autograd::SavedGroup> {
  static std::string type_name() { return "gradwire::autograd::SavedGroup"; }
  static absl::Status encode(const autograd::SavedGroup& group, Encoder& encoder, proto::Value& out);
  static absl::StatusOr<autograd::SavedGroup> decode(const proto::Value& in, Decoder& decoder);
};

}  // namespace gradwire::rpc

namespace gradwire::autograd {

// The saved state of a distributed optimizer. As bytes it is the same on all machines with the same byte
// order:
//
//   "gradwire optimizer state 1\n"
//   the FNV-1a hash of the rest of the file                        8 bytes
//   the size n of a Payload (proto/value.proto), and the Payload   8 + n bytes
//   for each buffer of its tensors, the size n and the content     8 + n bytes
//
// The payload has one value: the pair of the optimizer's name and a list of SavedGroup.
struct OptimizerFile {
  // OptimizerTraits<O>::name().
  std::string kind;
  SavedGroups groups;
};

// InvalidArgument if a value cannot be saved; the error names it. ResourceExhausted if there are too many
// parameters.
absl::StatusOr<std::string> write_optimizer_file(const OptimizerFile& file);
// `bytes` need not be trusted: InvalidArgument if they are not a valid file.
absl::StatusOr<OptimizerFile> read_optimizer_file(absl::string_view bytes);

}  // namespace gradwire::autograd
