#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/rpc/core/envelope.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// A message that is held until the group's log names a worker. A message that follows a held Hello is not
// parsed before the Hello is admitted: a few bytes of a serialised header may need much memory once they are
// parsed.
struct HeldMessage {
  EnvelopePtr envelope;  // nullptr while `unparsed` is not parsed.
  std::string unparsed;
  std::vector<transport::Buffer> buffers;
  uint64_t bytes = 0;  // Memory that it was counted with.
};

// The held messages of one connection, in order, and within the limits on their memory. Not thread-safe,
// except for the count over all connections.
class HeldMessages {
 public:
  static constexpr std::size_t kMax = 4096;

  // Both must outlive it.
  HeldMessages(const Limits& limits, std::atomic<uint64_t>& bytes_in_all)
      : limits_(limits), bytes_in_all_(bytes_in_all) {}

  // Returns false if the message would exceed a limit; then the message is dropped.
  bool push(HeldMessage message);
  HeldMessage pop();
  // Puts back the message that pop() returned, after its header was parsed.
  void put_back(HeldMessage message);
  // Removes all messages and returns them. The caller must destroy them without holding a lock.
  std::deque<HeldMessage> drop();

  bool empty() const { return messages_.empty(); }
  HeldMessage& front() { return messages_.front(); }
  // The error for a message that push() refused. Code: ResourceExhausted.
  absl::Status limit_error() const;

 private:
  // Adds to the counts of held bytes. Every change goes through it; a negative number wraps around.
  void count(uint64_t bytes);

  const Limits& limits_;
  std::atomic<uint64_t>& bytes_in_all_;
  std::deque<HeldMessage> messages_;
  uint64_t bytes_ = 0;
};

}  // namespace gradwire::rpc
