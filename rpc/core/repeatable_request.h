#pragma once

#include <cstdint>
#include <vector>

#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// A request that may be sent more than once. Its buffers are owned, and shared with this object, so no
// transport gives them away to the receiver. Immutable once made.
struct RepeatableRequest {
  EnvelopeBox envelope;
  std::vector<transport::Buffer> buffers;
  uint64_t id = 0;  // Request.request_id.
};

}  // namespace gradwire::rpc
