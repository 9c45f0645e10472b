#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/collectives/process_group.h"

// What the parts of nccl_check share.
namespace gradwire::collectives::nccl_check {

using Group = std::shared_ptr<ProcessGroup>;

// How many checks failed so far.
int failures();
void check(bool good, const std::string& what);
// Runs body(group, rank) as one rank for each of `devices`, rank r on cuda:devices[r].
void run_world(const std::vector<int>& devices, absl::Duration timeout,
               const std::function<void(Group, int)>& body);
absl::Status error_of(const std::function<void()>& run);

// Every operation on `size` ranks with a GPU each, against what the CPU makes of the same values.
void check_world(int size);
// The forms for one rank with the first `count` GPUs.
void check_several_devices(int count);

}  // namespace gradwire::collectives::nccl_check
