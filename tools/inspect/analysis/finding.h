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
  };

  Kind kind = Kind::kSlowCall;
  // One sentence that names the culprit.
  std::string title;
  // Further lines, such as the calls of a chain.
  std::vector<std::string> details;
  // What to do about it: one sentence without a capital and a full stop. analyze() sets it.
  std::string advice;
  // The incarnations that cause it, as far as they are known.
  std::vector<uint64_t> culprits;
  // How long it has lasted; zero if that is unknown.
  absl::Duration age;
};

// The word for a kind in JSON and in tests: "deadlock", "late_rank".
const char* name_of(Finding::Kind kind);
// What to do about a finding of this kind, as Finding::advice.
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
  // The most findings of each kind.
  std::size_t most = 10;
};

}  // namespace gradwire::inspect
