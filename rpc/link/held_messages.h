#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/rpc/link/envelope.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/message.h"

namespace gradwire::rpc {

// A message that waits for the directory. A message behind a Hello that waits is not parsed before the Hello
// is admitted: a few bytes of a header may become many in memory.
struct HeldMessage {
  EnvelopePtr envelope;  // nullptr: `unread` is to be parsed.
  std::string unread;
  std::vector<transport::Buffer> buffers;
  uint64_t bytes = 0;  // Memory, as it was counted.
};

// The messages of one connection that wait, in order, within the limits of what they may take. Not
// thread-safe, but for the count over all connections.
class HeldMessages {
 public:
  static constexpr std::size_t kMax = 4096;

  // Both must outlive it.
  HeldMessages(const Limits& limits, std::atomic<uint64_t>& bytes_in_all)
      : limits_(limits), bytes_in_all_(bytes_in_all) {}

  // False when that would be over the limits; then the message is dropped.
  bool push(HeldMessage message);
  HeldMessage pop();
  // Puts back what pop() took, now that its header is parsed.
  void put_back(HeldMessage message);
  // Empties it; what it held is to be destroyed outside of locks.
  std::deque<HeldMessage> drop();

  bool empty() const { return messages_.empty(); }
  HeldMessage& front() { return messages_.front(); }
  // Says that push() returned false.
  absl::Status too_much() const;

 private:
  // Every change of what is held.
  void count(uint64_t bytes);

  const Limits& limits_;
  std::atomic<uint64_t>& bytes_in_all_;
  std::deque<HeldMessage> messages_;
  uint64_t bytes_ = 0;
};

}  // namespace gradwire::rpc
