#pragma once

#include <ATen/core/ivalue.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/codec/codec.h"

// The state of an optimizer, taken apart: by parameter group and by parameter instead of by the addresses
// that libtorch's own archives name parameters by, so that it fits parameters that live elsewhere next time.
namespace gradwire::autograd {

// The content of a torch::serialize archive as plain values.
struct ArchiveTree {
  std::map<std::string, c10::IValue> values;
  std::map<std::string, ArchiveTree> children;
};

struct SavedParameter {
  // The sizes and dtype of the parameter, not of its state.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  // nullopt: it has never been stepped.
  std::optional<ArchiveTree> state;
};

struct SavedGroup {
  ArchiveTree options;
  std::vector<SavedParameter> parameters;
};

using SavedGroups = std::vector<SavedGroup>;

// The options of each group of `optimizer` and the state of each of its parameters, copied to the CPU. Throws
// Error, Unimplemented, when it does not save itself as libtorch's optimizers do, with
// torch::optim::serialize; and what its save() throws.
SavedGroups take_apart(const torch::optim::Optimizer& optimizer);

// Gives `optimizer` these options and states, on the devices of its parameters, instead of those it has.
// After an exception it has those it had. `groups` may come from anywhere: throws Error, InvalidArgument,
// when they are not as many groups and parameters as the optimizer's; and what its load() throws.
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
