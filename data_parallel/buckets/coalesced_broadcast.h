#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/collectives/process_group.h"

namespace gradwire::data_parallel {

// A broadcast under way, which copies the tensors of one rank to the tensors of every rank. Packs them into
// few messages of about `bytes` bytes each; each message has one dtype and device. Autograd does not see the
// change, so tensors saved for a backward pass stay valid. Not thread-safe.
class CoalescedBroadcast {
 public:
  // Starts the broadcast. `root`: the rank in the group. All ranks must call it with tensors of the same
  // shapes and dtypes. The tensors must not change before finish(). Throws the group's errors.
  CoalescedBroadcast(collectives::ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root,
                     uint64_t bytes = uint64_t{25} << 20);

  // The operations that finish() waits for.
  std::vector<std::shared_ptr<collectives::Work>> works() const;
  // Waits for the messages in order, and unpacks them. Throws the group's errors.
  void finish();

 private:
  struct Message {
    std::vector<at::Tensor> tensors;
    at::Tensor flat;
    std::shared_ptr<collectives::Work> work;
  };
  static Message pack(std::vector<at::Tensor> tensors);
  static void unpack(const Message& message);

  const bool is_root_;
  std::vector<Message> messages_;
};

// Runs a CoalescedBroadcast from its start to its end.
void broadcast_coalesced(collectives::ProcessGroup& group, const std::vector<at::Tensor>& tensors,
                         int root = 0, uint64_t bytes = uint64_t{25} << 20);

// A number for each tensor's dtype and device: equal for tensors with equal dtype and device, and counted
// from 0 in the order of first appearance.
std::vector<int> kinds_of(const std::vector<at::Tensor>& tensors);

}  // namespace gradwire::data_parallel
