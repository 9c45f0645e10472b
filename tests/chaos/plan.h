#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace chaos {

// What happens in a run. All of it follows from the seed; driver and workers each make it.
struct Plan {
  static constexpr int kWorkers = 4;

  struct Kill {
    int worker = 0;
    enum class When {
      // By the driver, so long after it was started: it may or may not have joined.
      kInInit,
      // By the driver, so long after the programs began.
      kAtTime,
      // By itself, when it is about to send its nth message since its program began.
      kAtMessage,
      // By the driver, when all have been told to shut down.
      kInShutdown,
    };
    When when = When::kAtTime;
    absl::Duration at;
    int message = 0;
  };
  // SIGSTOP, and SIGCONT when it is over.
  struct Pause {
    int worker = 0;
    absl::Duration at;
    absl::Duration length;
  };

  // Of the process that has the store, so long after the programs began. One that is started again has kept
  // nothing.
  struct StoreFault {
    enum class What { kNone, kPause, kKill, kRestart };
    What what = What::kNone;
    absl::Duration at;
    // Of a pause, or until it is started again.
    absl::Duration length;

    // The group's log is gone, so that nothing is agreed any more.
    bool for_good() const { return what == What::kKill || what == What::kRestart; }
  };

  uint64_t seed = 0;
  std::vector<std::string> transports;
  // Probabilities, for each message (tests/chaos/faults.h).
  double lose = 0;
  double cut = 0;
  double delay = 0;
  std::vector<Kill> kills;
  std::vector<Pause> pauses;
  // About as long as kDeadAfterOfLongPause, and then nothing else happens in the run. A worker that is paused
  // for longer is dead to the others, and learns it.
  std::optional<Pause> long_pause;
  StoreFault store;
  bool graceful = true;
  // How long to wait for the others to join.
  absl::Duration join_timeout = absl::Seconds(20);
  // Of each worker's program.
  int threads = 2;
  int steps = 0;

  bool faulty() const { return lose > 0 || cut > 0 || delay > 0; }
  // Whether nothing happens in the run that may make a call wait: its calls have so much time that none may
  // run out of it. (A worker that is killed fails calls, at once. No call needs the store.)
  bool patient() const { return !faulty() && pauses.empty(); }
  // A worker is suspect after a pause of middling length. Dead is only who was killed, or paused for long.
  static constexpr absl::Duration kHeartbeat = absl::Milliseconds(40);
  static constexpr absl::Duration kSuspectAfter = absl::Milliseconds(130);
  static constexpr absl::Duration kDeadAfterOfLongPause = absl::Seconds(4);
  // The worker whose pause is so long that it is dead.
  std::optional<int> outcast() const {
    if (!long_pause || long_pause->length < kDeadAfterOfLongPause) return std::nullopt;
    return long_pause->worker;
  }
  std::string to_string() const;
};

Plan make_plan(uint64_t seed);

std::string worker_name(int worker);

}  // namespace chaos
