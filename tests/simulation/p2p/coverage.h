#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::p2p_simulation {

// What happens to operations, and in which state of theirs.
struct Coverage {
  enum Machine : uint8_t { kSend, kReceive };
  // Of a message: those of Send::Stage. Of a receive: whether a message has been found that it waits for.
  enum ReceiveState : uint8_t { kWaiting, kAsked };
  enum Event : uint8_t {
    kCancelled,
    kLate,
    kChannelEnded,
    kRankLost,
    kClosed,
    // Of a message alone.
    kSendsFailed,
    kCts,
    kNack,
    kTransmitted,
    kNotTransmitted,
    // Of a receive alone.
    kDelivered = kSendsFailed,
    kAnotherSize,
    kWithdrawn,
  };

  static simulation::CoverageTable table();
};

}  // namespace gradwire::p2p_simulation
