#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/autograd/optimizer/optimizer_archive.h"

// The saved state of a distributed optimizer as bytes, the same on every machine of one byte order:
//
//   "gradwire optimizer state 1\n"
//   the FNV-1a hash of all that follows                             8 bytes
//   the size of a Payload (proto/value.proto), and the Payload      8 bytes and so many
//   for each buffer that its tensors name, its size and its bytes   8 bytes and so many
//
// The payload's one value is the pair of the optimizer's name and a list of SavedGroup.
namespace gradwire::autograd {

struct OptimizerFile {
  // OptimizerTraits<O>::name().
  std::string kind;
  SavedGroups groups;
};

// InvalidArgument when something cannot be saved, naming it.
absl::StatusOr<std::string> write_optimizer_file(const OptimizerFile& file);
// `bytes` may come from anywhere: InvalidArgument says what is wrong with them.
absl::StatusOr<OptimizerFile> read_optimizer_file(absl::string_view bytes);

}  // namespace gradwire::autograd
