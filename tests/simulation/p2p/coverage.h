#pragma once

#include <cstdint>

#include "gradwire/tests/simulation/harness/coverage_table.h"

namespace gradwire::p2p_simulation {

// The events that happen to operations, and the states in which they happen.
struct Coverage {
  enum Machine : uint8_t { kSend, kReceive };
  // The states of a message are those of Send::Stage. The states of a receive say whether it has sent CTS for
  // a message.
  enum ReceiveState : uint8_t { kWaiting, kCtsSent };
  enum Event : uint8_t {
    kCancelled,
    kLate,
    kChannelEnded,
    kRankLost,
    kClosed,
    // Events of messages only.
    kSendsFailed,
    kCts,
    kNack,
    kTransmitted,
    kNotTransmitted,
    // Events of receives only.
    kDelivered = kSendsFailed,
    kAnotherSize,
    kCancelReceived,
  };

  static simulation::CoverageTable table();
};

}  // namespace gradwire::p2p_simulation
