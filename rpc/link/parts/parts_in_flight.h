#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// Counts the parts that one side of a connection has sent of messages whose rest has not been sent. Both ends
// count them, each by the messages in their order. The sender counts a part before it sends it, and forgets
// it after the message. So if the sender keeps to the limits, the receiver never finds more. Not
// thread-safe.
class PartsInFlight {
 public:
  static constexpr std::size_t kMaxMessages = 64;
  static constexpr std::size_t kMaxBuffers = 4096;
  static constexpr uint64_t kMaxBytes = uint64_t{256} << 20;

  // One part, or all parts of one message.
  struct Size {
    std::size_t buffers = 0;
    uint64_t bytes = 0;
    Size() = default;
    explicit Size(const std::vector<transport::Buffer>& of) : buffers(of.size()) {
      for (const transport::Buffer& buffer : of) bytes += buffer.size();
    }
    Size& operator+=(const Size& other) {
      buffers += other.buffers;
      bytes += other.bytes;
      return *this;
    }
  };

  // Adds a part; `begins`: the first one of its message. Returns false, and adds nothing, over a limit.
  bool add(const Size& part, bool begins) {
    if (messages_ + (begins ? 1 : 0) > kMaxMessages || part.buffers > kMaxBuffers - total_.buffers ||
        part.bytes > kMaxBytes - total_.bytes) {
      return false;
    }
    messages_ += begins ? 1 : 0;
    total_ += part;
    return true;
  }
  // Removes all parts of one message, which have this size.
  void remove(const Size& message) {
    --messages_;
    total_.buffers -= message.buffers;
    total_.bytes -= message.bytes;
  }
  std::size_t messages() const { return messages_; }

 private:
  std::size_t messages_ = 0;
  Size total_;
};

}  // namespace gradwire::rpc
