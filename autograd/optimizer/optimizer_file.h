#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/autograd/optimizer/optimizer_archive.h"

// The saved state of a distributed optimizer as bytes. The format is the same on all machines with the same
// byte order:
//
//   "gradwire optimizer state 1\n"
//   the FNV-1a hash of the rest of the file                        8 bytes
//   the size n of a Payload (proto/value.proto), and the Payload   8 + n bytes
//   for each buffer of its tensors, the size n and the content     8 + n bytes
//
// The payload has one value: the pair of the optimizer's name and a list of SavedGroup.
namespace gradwire::autograd {

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
