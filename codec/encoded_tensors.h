#pragma once

#include <memory>
#include <vector>

#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Tensors in the memory of this process that a message names, and that its receiver, an agent of this
// process, takes. The destructor drops those that were not taken. Thread-safe.
class HandedOver {
 public:
  virtual ~HandedOver() = default;
  // Whether the receiver has taken them.
  virtual bool taken() const = 0;
};

// The tensors of a message after encode(), except their descriptions.
struct EncodedTensors {
  std::vector<transport::Buffer> buffers;
  // Not nullptr while bytes are still on their way from a device. The message must be sent when this point is
  // reached.
  StreamFencePtr copies;
  // Not nullptr if the receiver takes tensors in this process. It must be kept until the receiver has decoded
  // the message, or will not do so any more.
  std::shared_ptr<HandedOver> handed_over;
};

}  // namespace gradwire::rpc
