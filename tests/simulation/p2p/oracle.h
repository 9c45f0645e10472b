#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "gradwire/collectives/cpu/p2p/effects.h"
#include "gradwire/collectives/cpu/p2p/frame.h"

namespace gradwire::p2p_simulation {

using collectives::cpu::kAnyRank;

// A send or a receive, as its caller and the simulation know it.
struct Operation {
  bool is_send() const { return send != nullptr; }

  int number = 0;
  int rank = 0;
  int peer = 0;
  uint64_t channel = 0;
  int64_t tag = 0;
  collectives::cpu::SendPtr send;
  collectives::cpu::ReceivePtr receive;
  std::string memory;
  absl::Time deadline;
  // The message of a receive, the receive of a message: as the oracle has it.
  int partner = -1;
  bool eager = false;
  bool asked = false;      // The kCts has come to the sender.
  bool announced = false;  // The carrier has announced it.
  bool taken = false;      // The carrier has taken it.
  bool withdrawn = false;  // The receiver knows that no more of it comes.
  bool cancelled = false;
  bool failed = false;  // In the carrier.
  bool ended = false;
};

// The receives and messages of one rank that wait: a receive takes the first message that came and suits it,
// a message goes to the first receive that was posted. By brute force on purpose: nothing of this is as the
// Matcher does it.
class Oracle {
 public:
  explicit Oracle(std::deque<Operation>& operations) : operations_(operations) {}

  // A message is known here. Sets the partners if there is a receive for it.
  void came(int message) { meet(message, messages_, receives_); }
  // Whether it has met its message or waits; false when there is none and none may come (`may_wait`).
  bool posted(int receive, bool may_wait);
  // It waits no more.
  void gone(int operation);
  void end_channel(uint64_t channel);

  bool ended(uint64_t channel) const { return ended_.contains(channel); }
  bool waits(int operation) const;
  const std::vector<int>& messages() const { return messages_; }
  const std::vector<int>& receives() const { return receives_; }

 private:
  // Finds the first of `others` for the operation, or puts it among `own`.
  void meet(int operation, std::vector<int>& own, std::vector<int>& others);

  std::deque<Operation>& operations_;
  std::set<uint64_t> ended_;
  // In the order in which they came, and were posted.
  std::vector<int> messages_, receives_;
};

}  // namespace gradwire::p2p_simulation
