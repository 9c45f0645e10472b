#include "gradwire/data_parallel/coalesced_broadcast.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <utility>

#include "gradwire/data_parallel/bucket_plan.h"

namespace gradwire::collectives {
namespace {

struct Message {
  std::vector<at::Tensor> tensors;
  at::Tensor flat;
  std::shared_ptr<Work> work;
};

Message pack(std::vector<at::Tensor> tensors) {
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

void unpack(const Message& message) {
  if (message.flat.is_same(message.tensors[0])) return;
  int64_t offset = 0;
  for (const at::Tensor& tensor : message.tensors) {
    tensor.copy_(message.flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

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

// 1. Pack the tensors into messages of about `bytes`, and start a broadcast for each as soon as it is
//    packed.
// 2. Then wait for the broadcasts in order, and unpack. So packing, sending and unpacking overlap.
void broadcast_coalesced(ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root,
                         uint64_t bytes) {
  const c10::NoGradGuard no_grad;
  const std::vector<int> kinds = kinds_of(tensors);
  std::vector<PlannedParameter> sizes;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    sizes.push_back({static_cast<uint64_t>(tensors[i].nbytes()), kinds[i]});
    order.push_back(i);
  }
  std::vector<Message> messages;
  for (const std::vector<std::size_t>& members :
       plan_buckets(sizes, order, {.first = bytes, .others = bytes})) {
    std::vector<at::Tensor> parts;
    // variable_data() has the same memory but its own version counter, so autograd does not see the change.
    for (std::size_t i : members) parts.push_back(tensors[i].variable_data());
    Message& message = messages.emplace_back(pack(std::move(parts)));
    message.work = group.broadcast_async(message.flat, group.ranks()[static_cast<std::size_t>(root)]);
  }
  for (const Message& message : messages) {
    message.work->wait();
    if (group.rank() != root) unpack(message);
  }
}

}  // namespace gradwire::collectives
