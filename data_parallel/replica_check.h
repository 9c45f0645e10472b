#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/data_parallel/named_tensor.h"

namespace gradwire::collectives {

// One line: what all ranks must have alike of a tensor.
std::string describe_replica(const char* what, const NamedTensor& tensor);

// Entered by all ranks of the group, with a line for each thing that must be equal. InvalidArgument, on every
// rank, names the first rank that differs from rank 0 and shows both lines. `device`: of the tensors that it
// sends. Throws what the group throws.
absl::Status check_replicas(ProcessGroup& group, const std::vector<std::string>& lines, at::Device device);

// Of the texts of all ranks: the first difference; OK when there is none. `ranks`: theirs in the world.
absl::Status compare_replicas(const std::vector<std::string>& texts, const std::vector<int>& ranks);

}  // namespace gradwire::collectives
