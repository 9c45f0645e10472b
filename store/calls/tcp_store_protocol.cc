#include "gradwire/store/calls/tcp_store_protocol.h"

#include "gradwire/store/interface/limits.h"

namespace gradwire::store {

Limits store_message_limits() {
  Limits limits;
  limits.max_header_bytes = kMaxMessageBytes;
  limits.max_buffers = 0;
  limits.max_buffer_bytes = 0;
  limits.max_message_bytes = kMaxMessageBytes;
  return limits;
}

}  // namespace gradwire::store
