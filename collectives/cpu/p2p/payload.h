#pragma once

#include <cstddef>
#include <utility>

#include "gradwire/transport/message.h"

namespace gradwire::collectives::cpu {

// The bytes of a message and their owner. Movable, not copyable.
class Payload {
 public:
  Payload() = default;
  // Refers to the message's only buffer or, if it has none, to its header from `offset` on.
  Payload(transport::Message message, std::size_t offset) : message_(std::move(message)), offset_(offset) {}
  // Refers to memory that its owner must keep while the payload is used.
  Payload(void* data, std::size_t size) { message_.buffers.emplace_back(data, size, nullptr); }
  Payload(Payload&&) = default;
  Payload& operator=(Payload&&) = default;

  static Payload copy_of(const void* data, std::size_t size) {
    Payload payload;
    if (size > 0) payload.message_.header.assign(static_cast<const char*>(data), size);
    return payload;
  }

  const void* data() const {
    return message_.buffers.empty() ? message_.header.data() + offset_ : message_.buffers[0].data();
  }
  std::size_t size() const {
    return message_.buffers.empty() ? message_.header.size() - offset_ : message_.buffers[0].size();
  }

 private:
  transport::Message message_;
  std::size_t offset_ = 0;
};

}  // namespace gradwire::collectives::cpu
