#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/codec/encoded_tensors.h"

namespace gradwire::rpc {

// Tensors on devices on their way between two agents of this process. They are not copied on the way: the
// receiver takes them after the sender's streams have computed them.
struct Handover {
  // The incarnations of sender and receiver.
  uint64_t from = 0;
  uint64_t to = 0;
  std::vector<at::Tensor> tensors;
  // After it the tensors may be read.
  StreamFencePtr fence;
};

// Keeps a handover until its message arrives. `id` gets the random number to be written into the message.
// When the result is destroyed, and the tensors were not taken, they are dropped.
std::shared_ptr<HandedOver> hand_over(Handover handover, uint64_t& id);
// Takes a handover out of the table. NotFound if none has this number between these two workers: its sender
// has given the message up, or the message is forged.
absl::StatusOr<Handover> take_handover(uint64_t id, uint64_t from, uint64_t to);
// Drops the handover when the result is destroyed, unless it was taken. For the receiver of its message.
std::shared_ptr<void> drop_handover_later(uint64_t id, uint64_t from, uint64_t to);

// The agents of this process, to which tensors can be handed over: from the registration until its result is
// destroyed.
std::shared_ptr<void> register_local_agent(uint64_t incarnation);
bool is_local_agent(uint64_t incarnation);

}  // namespace gradwire::rpc
