#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/buckets/named_tensor.h"

namespace gradwire::data_parallel {

// Describes, in one line, the properties of a tensor that must be equal on all ranks. `what`: "the
// parameter", "the delayed parameter" or "the buffer".
std::string describe_replica(const char* what, const NamedTensor& tensor);

// Compares `lines` over the ranks of the group; all ranks must call it. Errors: InvalidArgument on every rank
// if they differ; the message names the first rank that differs from rank 0 and shows both lines. `device`:
// the device of the tensors that it sends. Throws the group's errors.
absl::Status check_replicas(collectives::ProcessGroup& group, const std::vector<std::string>& lines,
                            at::Device device);

// The error for the first difference between the texts of all ranks; OK if they are equal. `ranks`: the ranks
// in the world.
absl::Status compare_replicas(const std::vector<std::string>& texts, const std::vector<int>& ranks);

}  // namespace gradwire::data_parallel
