// The cases of the conformance suite that check every operation, several groups, and messages.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/collectives/objects.h"
#include "gradwire/tests/collectives/cases.h"
#include "gradwire/tests/collectives/inputs.h"

namespace gradwire::collectives {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors list_for(const ProcessGroup& group, bool given, const at::Tensor& tensor) {
  return given ? Tensors(static_cast<std::size_t>(group.size()), tensor) : Tensors();
}

// Runs an operation of objects; each rank's object is its name.
void exchange_objects(ProcessGroup& group, Operation operation) {
  const std::shared_ptr<ProcessGroup> shared = group.shared_from_this();
  const int root = group.ranks().back();
  const bool is_root = group.rank() == group.size() - 1;
  std::vector<std::string> names, list;
  for (const int rank : group.ranks()) names.push_back(absl::StrCat("rank ", rank));
  std::string name = names[group.rank()];
  switch (operation) {
    case Operation::kBroadcastObject:
      broadcast_object(name, root, shared);
      return expect(name == names.back(), "broadcast_object gives " + name);
    case Operation::kAllGatherObject:
      all_gather_object(list, name, shared);
      return expect(list == names, "all_gather_object");
    case Operation::kGatherObject:
      gather_object(list, name, root, shared);
      return expect(is_root ? list == names : list.empty(), "gather_object");
    default:
      scatter_object(name, is_root ? names : list, root, shared);
      return expect(name == names[group.rank()], "scatter_object gives " + name);
  }
}

// Calls the operation with copies of `tensor`, which has as many rows as the group has ranks.
void call(ProcessGroup& group, Operation operation, const at::Tensor& tensor) {
  const std::vector<int>& ranks = group.ranks();
  const int root = ranks.front(), next = ranks[(group.rank() + 1) % group.size()];
  const bool is_root = group.rank() == 0;
  switch (operation) {
    case Operation::kBroadcast:
      return group.broadcast(tensor, root);
    case Operation::kReduce:
      return group.reduce(tensor, root);
    case Operation::kAllReduce:
      return group.all_reduce(tensor);
    case Operation::kGather:
      return group.gather(tensor, list_for(group, is_root, tensor), root);
    case Operation::kAllGather:
      return group.all_gather(list_for(group, true, tensor), tensor);
    case Operation::kScatter:
      return group.scatter(tensor, list_for(group, is_root, tensor), root);
    case Operation::kReduceScatter:
      return group.reduce_scatter(tensor, list_for(group, true, tensor));
    case Operation::kAllToAll:
      return group.all_to_all(list_for(group, true, tensor), list_for(group, true, tensor));
    case Operation::kBarrier:
      return group.barrier();
    case Operation::kMonitoredBarrier:
      return group.monitored_barrier();
    case Operation::kAllGatherIntoTensor:
      return group.all_gather_into_tensor(tensor.is_cpu() ? at::cat(list_for(group, true, tensor)) : tensor,
                                          tensor);
    case Operation::kReduceScatterTensor:
      return group.reduce_scatter_tensor(tensor,
                                         tensor.is_cpu() ? at::cat(list_for(group, true, tensor)) : tensor);
    case Operation::kAllToAllSingle:
      return group.all_to_all_single(tensor, tensor.is_cpu() ? tensor.clone() : tensor);
    case Operation::kSend: {
      const auto sent = group.isend(tensor, next, 3);
      group.recv(at::empty_like(tensor), kAnySource, 3);
      return sent->wait();
    }
    case Operation::kReceive: {
      const auto received = group.irecv(tensor, kAnySource, 4);
      group.send(at::zeros_like(tensor), next, 4);
      return received->wait();
    }
    case Operation::kBroadcastMultigpu:
      return group.broadcast_multigpu_async({tensor}, root)->wait();
    case Operation::kAllReduceMultigpu:
      return group.all_reduce_multigpu_async({tensor})->wait();
    case Operation::kReduceMultigpu:
      return group.reduce_multigpu_async({tensor}, root)->wait();
    case Operation::kAllGatherMultigpu:
      return group.all_gather_multigpu_async({list_for(group, true, tensor)}, {tensor})->wait();
    default:
      return exchange_objects(group, operation);
  }
}

void expect_refused(ProcessGroup& group, Operation operation, const at::Tensor& tensor) {
  const std::string what = absl::StrCat(name_of(operation), " of a tensor on ", tensor.device().str(), " by ",
                                        to_string(group.backend()));
  try {
    call(group, operation, tensor);
  } catch (const Error& error) {
    return expect(error.status().code() == absl::StatusCode::kInvalidArgument,
                  absl::StrCat(what, " is refused otherwise: ", error.what()));
  }
  expect(false, what + " is not refused");
}

}  // namespace

void check_every_operation(ProcessGroup& group) {
  const Backend backend = group.backend();
  for (const Operation operation : kOperations) {
    const at::Tensor tensor = at::full({2 * group.size(), 3}, group.rank(), at::kFloat);
    const bool works = support_of(backend, TensorDevice::kCpu, operation) == Support::kYes;
    if (works) call(group, operation, tensor);
    if (group.rank() != group.size() - 1) continue;
    if (!works) expect_refused(group, operation, tensor);
    // The suite uses CPU tensors. GPU tensors are only checked in builds without CUDA, which must refuse
    // them.
    const Support on_gpu = support_of(backend, TensorDevice::kCuda, operation);
    if (on_gpu == Support::kYes || is_nccl_available()) continue;
    expect_refused(group, operation, without_memory_on_gpu(at::kFloat));
  }
}

void check_groups(ProcessGroup& world) {
  const int size = world.size(), self = world.rank();
  std::vector<int> parts[2];
  for (int rank = 0; rank < size; ++rank) parts[rank % 2].push_back(rank);
  const std::vector<int>& mates = parts[self % 2];
  std::shared_ptr<ProcessGroup> groups[2];
  for (int i = 0; i < 2; ++i) {
    if (!parts[i].empty()) groups[i] = world.new_group(parts[i]);
  }
  for (int i = 0; i < 2; ++i) {
    const int rank = groups[i] == nullptr ? -1 : groups[i]->rank();
    const auto own = std::find(parts[i].begin(), parts[i].end(), self);
    expect(rank == (own == parts[i].end() ? -1 : own - parts[i].begin()), "the rank in a group");
  }
  ProcessGroup& own = *groups[self % 2];
  check_reductions(own);
  check_copies(own);
  check_messages(own);
  // Operations of two groups may run in any order relative to each other.
  std::vector<std::pair<std::shared_ptr<Work>, at::Tensor>> works;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor in_world = at::full({100}, self + i, at::kLong);
    const at::Tensor in_part = at::full({3}, self - i, at::kLong);
    works.emplace_back(world.all_reduce_async(in_world), in_world);
    works.emplace_back(own.all_reduce_async(in_part), in_part);
  }
  int64_t sum_of_mates = 0;
  for (const int rank : mates) sum_of_mates += rank;
  for (int i = 0; i < 20; ++i) {
    works[2 * i].first->wait();
    works[2 * i + 1].first->wait();
    expect(works[2 * i].second[50].item<int64_t>() == size * (size - 1) / 2 + size * i,
           "a sum over the world");
    expect(
        works[2 * i + 1].second[2].item<int64_t>() == sum_of_mates - static_cast<int64_t>(mates.size()) * i,
        "a sum over a part");
  }
  own.destroy();
}

void check_messages(ProcessGroup& group) {
  const int size = group.size(), self = group.rank();
  const int next = group.ranks()[(self + 1) % size], before = group.ranks()[(self + size - 1) % size];
  const auto sent_by = [](int world_rank, int64_t count, int number) {
    return at::full({count}, 10 * world_rank + number, at::kLong);
  };
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{100000}}) {
    // Two messages with one tag, which must keep their order. A third message with another tag is sent first,
    // and is received from any source.
    Tensors received;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 3; ++i) received.push_back(at::zeros({count}, at::kLong));
    works.push_back(group.irecv(received[0], before, 1));
    works.push_back(group.irecv(received[1], before, 1));
    works.push_back(group.irecv(received[2], kAnySource, 2));
    const std::vector<std::shared_ptr<Work>> sends = {
        group.isend(sent_by(group.ranks()[self], count, 2), next, 2),
        group.isend(sent_by(group.ranks()[self], count, 0), next, 1),
        group.isend(sent_by(group.ranks()[self], count, 1), next, 1)};
    for (int i = 0; i < 3; ++i) {
      works[i]->wait();
      expect(works[i]->source_rank() == before, "a message has the wrong source");
      expect_equal(received[i], sent_by(before, count, i), absl::StrCat("message ", i));
    }
    for (const auto& work : sends) work->wait();
  }
}

}  // namespace gradwire::collectives
