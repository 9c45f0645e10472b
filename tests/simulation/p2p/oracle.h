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

// A send or a receive, as its caller and the simulation see it.
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
  // The number of the matched receive or message, as the oracle has determined it; -1 if none.
  int partner = -1;
  bool eager = false;
  bool cts_received = false;     // The sender has received the kCts.
  bool rts_sent = false;         // The carrier has sent the kRts.
  bool taken = false;            // The carrier has taken it from the outbox.
  bool cancel_received = false;  // The receiver has received the kCancel.
  bool cancelled = false;
  bool failed = false;  // The carrier has failed to send it.
  bool ended = false;
};

// The receives and messages of one rank that wait. A receive takes the oldest message that matches it, and a
// message goes to the oldest receive that matches it. It is brute force on purpose, so that it has nothing in
// common with the Matcher.
class Oracle {
 public:
  explicit Oracle(std::deque<Operation>& operations) : operations_(operations) {}

  // A message has become known to the receiver. Sets the partners if there is a receive for it.
  void add_message(int message) { match(message, messages_, receives_); }
  // Adds a receive. Returns whether it was matched or waits; false if no message waits and none may arrive
  // (`may_wait` is false).
  bool add_receive(int receive, bool may_wait);
  // The operation does not wait any more.
  void remove(int operation);
  void end_channel(uint64_t channel);

  bool ended(uint64_t channel) const { return ended_.contains(channel); }
  bool waits(int operation) const;
  const std::vector<int>& messages() const { return messages_; }
  const std::vector<int>& receives() const { return receives_; }

 private:
  // Matches the operation with the oldest suitable one of `others`, or adds it to `own`.
  void match(int operation, std::vector<int>& own, std::vector<int>& others);

  std::deque<Operation>& operations_;
  std::set<uint64_t> ended_;
  // In the order of arrival and of posting.
  std::vector<int> messages_, receives_;
};

}  // namespace gradwire::p2p_simulation
