#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"

// Functions that the parts of nccl_check share.
namespace gradwire::collectives::nccl_check {

using Group = std::shared_ptr<ProcessGroup>;

// Number of checks that have failed so far.
int failures();
// Counts and prints a failure unless `good`.
void check(bool good, const std::string& what);
// Runs body(group, rank) on one thread for each of `devices`: rank r uses cuda:devices[r].
void run_world(const std::vector<int>& devices, absl::Duration timeout,
               const std::function<void(Group, int)>& body);
// The Status of the Error that `run` throws; OK if it throws none.
absl::Status error_of(const std::function<void()>& run);

// Checks every operation on `size` ranks with one GPU each, against results from the CPU.
void check_world(int size);
// Checks the multigpu operations on one rank with the first `count` GPUs.
void check_several_devices(int count);

}  // namespace gradwire::collectives::nccl_check
