#include "gradwire/collectives/coalescing.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::collectives {
namespace {

using Kind = CoalescedCall::Kind;
using Tensors = std::vector<at::Tensor>;
using Calls = std::vector<CoalescedCall>;

[[noreturn]] void refuse_calls(const std::string& what) { throw Error(absl::InvalidArgumentError(what)); }

void check_lengths(const char* function, const char* name, std::size_t length, std::size_t expected) {
  if (length == expected) return;
  refuse_calls(absl::StrCat(function, ": ", name, " has ", length, " entries, expected ", expected));
}

Calls reductions(Tensors tensors, const Reduction& op) {
  Calls calls;
  for (at::Tensor& tensor : tensors)
    calls.push_back({.kind = Kind::kAllReduce, .outputs = {std::move(tensor)}, .inputs = {}, .op = op});
  return calls;
}

Calls gathers(const std::vector<Tensors>& lists, Tensors tensors, const Group& group) {
  // A rank that is not a member need not have lists.
  if (group->rank() >= 0)
    check_lengths("all_gather_coalesced", "lists", lists.size(), static_cast<std::size_t>(group->size()));
  Calls calls;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CoalescedCall call{.kind = Kind::kAllGather, .outputs = {}, .inputs = {tensors[i]}};
    for (const Tensors& list : lists) {
      check_lengths("all_gather_coalesced", "a list of `lists`", list.size(), tensors.size());
      call.outputs.push_back(list[i]);
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

Calls scatters(Tensors outputs, std::vector<Tensors> lists, const Reduction& op) {
  check_lengths("reduce_scatter_coalesced", "lists", lists.size(), outputs.size());
  Calls calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    calls.push_back({.kind = Kind::kReduceScatter,
                     .outputs = {std::move(outputs[i])},
                     .inputs = std::move(lists[i]),
                     .op = op});
  }
  return calls;
}

Calls of_pairs(const char* function, Kind kind, Tensors outputs, Tensors inputs, const Reduction& op) {
  check_lengths(function, "inputs", inputs.size(), outputs.size());
  Calls calls;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    calls.push_back(
        {.kind = kind, .outputs = {std::move(outputs[i])}, .inputs = {std::move(inputs[i])}, .op = op});
  }
  return calls;
}

}  // namespace

void all_reduce_coalesced(Tensors tensors, const Reduction& op, const Group& group) {
  group_or_world(group)->coalesced(reductions(std::move(tensors), op));
}
std::shared_ptr<Work> all_reduce_coalesced_async(Tensors tensors, const Reduction& op, const Group& group) {
  return group_or_world(group)->coalesced_async(reductions(std::move(tensors), op));
}

void all_gather_coalesced(const std::vector<Tensors>& lists, Tensors tensors, const Group& group) {
  const Group in = group_or_world(group);
  in->coalesced(gathers(lists, std::move(tensors), in));
}
std::shared_ptr<Work> all_gather_coalesced_async(const std::vector<Tensors>& lists, Tensors tensors,
                                                 const Group& group) {
  const Group in = group_or_world(group);
  return in->coalesced_async(gathers(lists, std::move(tensors), in));
}

void reduce_scatter_coalesced(Tensors outputs, std::vector<Tensors> lists, const Reduction& op,
                              const Group& group) {
  group_or_world(group)->coalesced(scatters(std::move(outputs), std::move(lists), op));
}
std::shared_ptr<Work> reduce_scatter_coalesced_async(Tensors outputs, std::vector<Tensors> lists,
                                                     const Reduction& op, const Group& group) {
  return group_or_world(group)->coalesced_async(scatters(std::move(outputs), std::move(lists), op));
}

void all_gather_into_tensor_coalesced(Tensors outputs, Tensors inputs, const Group& group) {
  group_or_world(group)->coalesced(of_pairs("all_gather_into_tensor_coalesced", Kind::kAllGatherIntoTensor,
                                            std::move(outputs), std::move(inputs), ReduceOp::kSum));
}
std::shared_ptr<Work> all_gather_into_tensor_coalesced_async(Tensors outputs, Tensors inputs,
                                                             const Group& group) {
  return group_or_world(group)->coalesced_async(of_pairs("all_gather_into_tensor_coalesced",
                                                         Kind::kAllGatherIntoTensor, std::move(outputs),
                                                         std::move(inputs), ReduceOp::kSum));
}

void reduce_scatter_tensor_coalesced(Tensors outputs, Tensors inputs, const Reduction& op,
                                     const Group& group) {
  group_or_world(group)->coalesced(of_pairs("reduce_scatter_tensor_coalesced", Kind::kReduceScatterTensor,
                                            std::move(outputs), std::move(inputs), op));
}
std::shared_ptr<Work> reduce_scatter_tensor_coalesced_async(Tensors outputs, Tensors inputs,
                                                            const Reduction& op, const Group& group) {
  return group_or_world(group)->coalesced_async(of_pairs("reduce_scatter_tensor_coalesced",
                                                         Kind::kReduceScatterTensor, std::move(outputs),
                                                         std::move(inputs), op));
}

void CoalescingManager::all_reduce(at::Tensor tensor, const Reduction& op) {
  calls_.push_back({.kind = Kind::kAllReduce, .outputs = {std::move(tensor)}, .inputs = {}, .op = op});
}
void CoalescingManager::broadcast(at::Tensor tensor, int src) {
  calls_.push_back({.kind = Kind::kBroadcast,
                    .outputs = {std::move(tensor)},
                    .inputs = {},
                    .op = ReduceOp::kSum,
                    .root = src});
}
void CoalescingManager::all_gather(Tensors list, at::Tensor tensor) {
  calls_.push_back({.kind = Kind::kAllGather, .outputs = std::move(list), .inputs = {std::move(tensor)}});
}
void CoalescingManager::all_gather_into_tensor(at::Tensor output, at::Tensor input) {
  calls_.push_back(
      {.kind = Kind::kAllGatherIntoTensor, .outputs = {std::move(output)}, .inputs = {std::move(input)}});
}
void CoalescingManager::reduce_scatter(at::Tensor output, Tensors list, const Reduction& op) {
  calls_.push_back(
      {.kind = Kind::kReduceScatter, .outputs = {std::move(output)}, .inputs = std::move(list), .op = op});
}
void CoalescingManager::reduce_scatter_tensor(at::Tensor output, at::Tensor input, const Reduction& op) {
  calls_.push_back({.kind = Kind::kReduceScatterTensor,
                    .outputs = {std::move(output)},
                    .inputs = {std::move(input)},
                    .op = op});
}
void CoalescingManager::all_to_all(Tensors outputs, Tensors inputs) {
  calls_.push_back({.kind = Kind::kAllToAll, .outputs = std::move(outputs), .inputs = std::move(inputs)});
}

std::shared_ptr<Work> CoalescingManager::start() {
  if (calls_.empty()) return std::make_shared<Work>(Future<int>(-1));
  return group_->coalesced_async(std::exchange(calls_, {}));
}

void CoalescingManager::run() {
  if (!calls_.empty()) group_->coalesced(std::exchange(calls_, {}));
}

// isend() and irecv() check their arguments, too. But when one of them throws, other messages of the list
// have begun.
std::vector<std::shared_ptr<Work>> batch_isend_irecv(const std::vector<P2POp>& messages) {
  if (messages.empty()) refuse_calls("batch_isend_irecv: the list is empty; expected at least one message");
  const Group group = group_or_world(messages.front().group);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const P2POp& message = messages[i];
    const std::string place = absl::StrCat("batch_isend_irecv: message ", i);
    const Group own = group_or_world(message.group);
    if (own != group) {
      refuse_calls(absl::StrCat(place, ": it is of group \"", own->name(), "\", but message 0 is of group \"",
                                group->name(), "\""));
    }
    try {
      if (message.kind == P2POp::Kind::kSend) {
        group->check_isend(message.tensor, message.peer, message.tag);
      } else {
        group->check_irecv(message.tensor, message.peer, message.tag);
      }
    } catch (const Error& error) {
      throw Error(with_context(error.status(), place));
    }
  }
  std::vector<std::shared_ptr<Work>> works(messages.size());
  const auto begin = [&](P2POp::Kind kind) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const P2POp& message = messages[i];
      if (message.kind != kind) continue;
      works[i] = kind == P2POp::Kind::kSend ? group->isend(message.tensor, message.peer, message.tag)
                                            : group->irecv(message.tensor, message.peer, message.tag);
    }
  };
  begin(P2POp::Kind::kReceive);
  begin(P2POp::Kind::kSend);
  return works;
}

}  // namespace gradwire::collectives
