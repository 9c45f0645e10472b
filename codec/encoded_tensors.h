#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gradwire/base/threads/stream_fence.h"
#include "gradwire/transport/message.h"

namespace gradwire {
class Executor;
}

namespace gradwire::rpc {

// Tensors in the memory of this process that a message names, and that its receiver, an agent of this
// process, takes. The destructor drops those that were not taken. Thread-safe.
class HandedOver {
 public:
  virtual ~HandedOver() = default;
  // Whether the receiver has taken them.
  virtual bool taken() const = 0;
};

// The first buffers of a message, which were sent ahead of it on some connection.
class SentAhead {
 public:
  virtual ~SentAhead() = default;
  // Returns the number by which a message on the connection `link` refers to them (Envelope.parts). 0 if they
  // were sent on another connection, or that one has ended: then they are added to the front of `buffers`.
  virtual uint64_t join(uint64_t link, std::vector<transport::Buffer>& buffers) = 0;
};

// The tensors of a message after encode(), except their descriptions.
struct EncodedTensors {
  // Set before encode(): runs the deleters of memory of the program that the message shares. nullptr: that of
  // the agent of the encoding thread does (adopted_executor()).
  std::shared_ptr<Executor> executor;
  // A point in the streams on the way to `copies`. When it is reached, the bytes of the first `buffers`
  // buffers are complete.
  struct Progress {
    StreamFencePtr fence;
    std::size_t buffers = 0;
  };

  std::vector<transport::Buffer> buffers;
  // Not nullptr while bytes are still on their way from a device. The message must be sent when this point is
  // reached.
  StreamFencePtr copies;
  // In rising order. Empty if no buffer is so large that it is worth sending before the others.
  std::vector<Progress> progress;
  // Not nullptr if buffers that belong before `buffers` were sent ahead.
  std::shared_ptr<SentAhead> ahead;
  // Not nullptr if the receiver takes tensors in this process. It must be kept until the receiver has decoded
  // the message, or will not do so any more.
  std::shared_ptr<HandedOver> handed_over;
};

}  // namespace gradwire::rpc
