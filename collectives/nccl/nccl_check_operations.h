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
using Tensors = std::vector<at::Tensor>;

// Number of checks that have passed and that have failed so far.
int passes();
int failures();
// Counts a check; prints `what` if it has failed.
void check(bool good, const std::string& what);
// As check(), for values: `got`, on a device, equals `want`, on the CPU, but for rounding.
void same(const at::Tensor& got, const at::Tensor& want, const std::string& what);
// As same(), but every bit must be equal. For every dtype.
void same_bits(const at::Tensor& got, const at::Tensor& want, const std::string& what);
// The input of a rank, on the CPU: small whole numbers, which half can represent exactly.
at::Tensor values(int rank, at::ScalarType dtype, at::IntArrayRef shape = {3, 5});
// The reduction of the values() of the ranks 0 to size - 1, on the CPU.
at::Tensor reference(int size, at::ScalarType dtype, ReduceOp op, at::IntArrayRef shape = {3, 5});
// Runs body(group, rank) on one thread for each of `devices`: rank r uses cuda:devices[r]. `backend`: as
// ProcessGroupOptions::backend.
void run_world(const std::vector<int>& devices, absl::Duration timeout,
               const std::function<void(Group, int)>& body, const std::string& backend = "nccl");
// Enqueues a kernel that runs for about this time in the calling thread's current stream.
void sleep_on_device(absl::Duration time);
// The Status of the Error that `run` throws; OK if it throws none.
absl::Status error_of(const std::function<void()>& run);

// Checks every operation on `size` ranks with one GPU each, against results from the CPU.
void check_world(int size);
// The part of check_world() for coalesced operations, batches of messages, dtypes that are only moved,
// tensors of different shapes, sparse tensors, and groups inside the group.
void check_together(const Group& group, int rank, int size, c10::Device device);
// Checks how operations are ordered with the caller's streams on `size` ranks, and groups that have cpu
// together with nccl.
void check_streams(int size);
// Checks the multigpu operations on one rank with the first `count` GPUs.
void check_several_devices(int count);

}  // namespace gradwire::collectives::nccl_check
