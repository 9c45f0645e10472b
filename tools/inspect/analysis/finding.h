#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace gradwire::inspect {

// A problem of a job that the analysis has found.
struct Finding {
  enum class Kind : uint8_t {
    kDeadlock,      // Calls or passes that wait for one another.
    kReentry,       // A chain of calls came back to a worker and makes no progress there: perhaps a deadlock.
    kUnresponsive,  // A worker that does not answer.
    kLost,          // A worker that has died.
    kLateRank,      // A rank that has not called a collective for which the others wait.
    kSlowCall,      // A call that takes long, and the chain of its callers.
    kQueued,        // Calls that wait for a thread.
    kFullWindow,    // Calls that wait for room in a flow window.
    kSlowTransport,  // Two workers of one host that use tcp.
    kLeak,           // Many RRefs, or RRefs of a holder that is gone.
    kUnusedResult,   // A backward pass in the fast mode that waits for the gradient of an unused result.
    kHotObject,      // Many calls that wait for their turn on a serial object.
    kSlowStore,      // A store that answers slowly.
    kNoRoom,         // Large messages that find no room in shared memory.
    kWrongClock,     // A worker whose wall clock differs from the others.
  };

  Kind kind = Kind::kSlowCall;
  // One sentence that names the culprit.
  std::string title;
  // Further lines, such as the calls of a chain.
  std::vector<std::string> details;
  // The advice to the user: one sentence without a capital and a full stop. analyze() sets it.
  std::string advice;
  // The incarnations that cause it, as far as they are known.
  std::vector<uint64_t> culprits;
  // How long it has lasted; zero if that is unknown.
  absl::Duration age;
};

// The word for a kind in JSON and in tests: "deadlock", "late_rank".
const char* name_of(Finding::Kind kind);
// The advice for findings of this kind.
const char* advice_of(Finding::Kind kind);

// From which values on something is a problem.
struct Thresholds {
  // A call in progress, and a worker's queue.
  absl::Duration slow_call = absl::Seconds(5);
  // The youngest call of a deadlock. Younger calls may be in transit while the workers are read.
  absl::Duration deadlock = absl::Seconds(1);
  // The time for which the other ranks wait for a late one.
  absl::Duration late_rank = absl::Seconds(2);
  // RRefs of one type and holder, and the age of the oldest.
  uint64_t rrefs = 1'000;
  absl::Duration rref_age = absl::Seconds(60);
  // RRefs of a holder that is gone. They are freed when all members have agreed about the loss.
  absl::Duration orphan_age = absl::Seconds(30);
  // Calls that wait for one serial object, and the age of the oldest.
  uint64_t hot_queue = 8;
  absl::Duration hot_wait = absl::Seconds(1);
  // The mean time of a worker's last calls to the store.
  absl::Duration slow_store = absl::Milliseconds(200);
  // The time for which large messages that found no room in shared memory are reported.
  absl::Duration no_room = absl::Seconds(10);
  // The difference of a worker's wall clock from the others.
  absl::Duration wrong_clock = absl::Seconds(1);
  // The most findings of each kind.
  std::size_t most = 10;
};

}  // namespace gradwire::inspect
