#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace gradwire::rpc {

// The transfers of tensors that other processes have sent to this worker (proto/rpc.proto, "Transfers"): a
// pure state machine. It decides whether the memory of another process may be read, and when that process may
// be notified that this worker does not read it any more.
//
// States of a transfer, by its sender and its number:
//   unknown   Its message has not arrived, or it has ended.
//   waiting   Its message has arrived.
//   reading   A thread is enqueueing the copies from the sender's memory.
//   refused   The sender has reclaimed the memory. It must not be read. Also for a message that has not
//             arrived and still may.
// Not thread-safe.
class ArrivedTransfers {
 public:
  // Maximum number of refusals that are remembered for one sender.
  static constexpr std::size_t kMaxRefused = 65'536;

  // The message has arrived.
  void arrive(uint64_t sender, uint64_t number);

  enum class Read {
    // The memory may be read until end_read().
    kAllowed,
    // The sender has reclaimed the memory, or is lost, or close() was called.
    kRefused,
    // The message has not arrived, or was read before.
    kUnknown,
  };
  Read begin_read(uint64_t sender, uint64_t number);
  // All copies are enqueued, and the events that mark their end are recorded. The transfer has ended here;
  // report it. Returns the Reclaims that can be answered now.
  std::vector<uint64_t> end_read(uint64_t sender, uint64_t number);
  // The message is gone. Returns whether it ended by this, unread; then report it.
  bool drop(uint64_t sender, uint64_t number);

  enum class Reclaim {
    // None of the transfers will be read. Answer.
    kAnswer,
    // Some are being read. end_read() or lose() returns `token`; answer then.
    kLater,
    // The sender has reclaimed too many transfers that have not arrived.
    kTooMany,
  };
  // The sender reclaims these transfers. `settled`: every message that it sent before has arrived. `token`
  // identifies the request.
  Reclaim reclaim(uint64_t sender, const std::vector<uint64_t>& numbers, bool settled, uint64_t token);
  // No message that the sender sent before its last Reclaim can arrive any more.
  void settle(uint64_t sender);

  // The sender is lost: nothing of it is read from now on. Returns the Reclaims of it that have no answer.
  std::vector<uint64_t> lose(uint64_t sender);
  // Nothing is read from now on.
  void close() { closed_ = true; }

  // Number of messages that have arrived and have not been read or dropped.
  std::size_t arrived() const { return transfers_.size(); }
  std::size_t reading() const { return reading_; }
  // Number of refusals of messages that have not arrived.
  std::size_t remembered() const;

 private:
  enum class State { kWaiting, kReading, kRefused };
  // A Reclaim that waits for transfers that are being read.
  struct Waiting {
    uint64_t sender = 0;
    std::set<uint64_t> reading;
  };
  using Key = std::pair<uint64_t, uint64_t>;

  absl::flat_hash_map<Key, State> transfers_;
  absl::flat_hash_map<uint64_t, Waiting> reclaims_;
  // Sender -> refused transfers whose messages have not arrived.
  absl::flat_hash_map<uint64_t, absl::flat_hash_set<uint64_t>> refused_;
  absl::flat_hash_set<uint64_t> lost_;
  std::size_t reading_ = 0;
  bool closed_ = false;
};

}  // namespace gradwire::rpc
