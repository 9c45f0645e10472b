#include "gradwire/data_parallel/buckets/coalesced_broadcast.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

#include "gradwire/data_parallel/buckets/bucket_plan.h"

namespace gradwire::data_parallel {

std::vector<int> kinds_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<at::ScalarType, at::Device>> known;
  std::vector<int> kinds;
  for (const at::Tensor& tensor : tensors) {
    const std::pair<at::ScalarType, at::Device> kind(tensor.scalar_type(), tensor.device());
    std::size_t i = 0;
    while (i < known.size() && known[i] != kind) ++i;
    if (i == known.size()) known.push_back(kind);
    kinds.push_back(static_cast<int>(i));
  }
  return kinds;
}

CoalescedBroadcast::Message CoalescedBroadcast::pack(std::vector<at::Tensor> tensors) {
  Message message{std::move(tensors), {}, nullptr};
  // A single contiguous tensor needs no copy: it is sent from, and received into, its own memory.
  if (message.tensors.size() == 1 && message.tensors[0].is_contiguous()) {
    message.flat = message.tensors[0];
    return message;
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : message.tensors) parts.push_back(tensor.reshape({-1}));
  message.flat = at::cat(parts);
  return message;
}

void CoalescedBroadcast::unpack(const Message& message) {
  if (message.flat.is_same(message.tensors[0])) return;
  int64_t offset = 0;
  for (const at::Tensor& tensor : message.tensors) {
    tensor.copy_(message.flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

// A broadcast starts as soon as its message is packed, so packing and sending overlap. Sending and unpacking
// overlap in finish().
CoalescedBroadcast::CoalescedBroadcast(collectives::ProcessGroup& group,
                                       const std::vector<at::Tensor>& tensors, int root, uint64_t bytes)
    : is_root_(group.rank() == root) {
  const c10::NoGradGuard no_grad;
  const std::vector<int> kinds = kinds_of(tensors);
  std::vector<PlannedParameter> sizes;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    sizes.push_back({static_cast<uint64_t>(tensors[i].nbytes()), kinds[i]});
    order.push_back(i);
  }
  for (const std::vector<std::size_t>& members :
       plan_buckets(sizes, order, {.first = bytes, .others = bytes})) {
    std::vector<at::Tensor> parts;
    // variable_data() has the same memory but its own version counter, so autograd does not see the change.
    for (std::size_t i : members) parts.push_back(tensors[i].variable_data());
    Message& message = messages_.emplace_back(pack(std::move(parts)));
    message.work = group.broadcast_async(message.flat, group.ranks()[static_cast<std::size_t>(root)]);
  }
}

std::vector<std::shared_ptr<collectives::Work>> CoalescedBroadcast::works() const {
  std::vector<std::shared_ptr<collectives::Work>> works;
  for (const Message& message : messages_) works.push_back(message.work);
  return works;
}

void CoalescedBroadcast::finish() {
  const c10::NoGradGuard no_grad;
  for (const Message& message : messages_) {
    message.work->wait();
    if (!is_root_) unpack(message);
  }
}

void broadcast_coalesced(collectives::ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root,
                         uint64_t bytes) {
  CoalescedBroadcast(group, tensors, root, bytes).finish();
}

}  // namespace gradwire::data_parallel
