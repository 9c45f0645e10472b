#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace chaos {

// The events and faults of a run. The seed determines all of them, so the driver and each worker make the
// same plan.
struct Plan {
  static constexpr int kWorkers = 4;

  struct Kill {
    int worker = 0;
    enum class When {
      // The driver kills the worker `at` after the start of the process, before or after it has joined.
      kInInit,
      // The driver kills the worker `at` after the start of the programs.
      kAtTime,
      // The worker kills itself before it sends its message number `message` since the start of its program.
      kAtMessage,
      // The driver kills the worker shortly after it has sent the command to shut down.
      kInShutdown,
    };
    When when = When::kAtTime;
    absl::Duration at;
    int message = 0;
  };
  // SIGSTOP `at` after the start of the programs, and SIGCONT `length` later.
  struct Pause {
    int worker = 0;
    absl::Duration at;
    absl::Duration length;
  };

  // A fault of the process that has the store, `at` after the start of the programs. A store that is started
  // again has lost its data.
  struct StoreFault {
    enum class What { kNone, kPause, kKill, kRestart };
    What what = What::kNone;
    absl::Duration at;
    // Length of the pause, or time until the store is started again.
    absl::Duration length;

    // Whether the group's log is lost, so that the workers cannot agree on a death any more.
    bool log_lost() const { return what == What::kKill || what == What::kRestart; }
  };

  uint64_t seed = 0;
  std::vector<std::string> transports;
  // Probabilities of the faults of each message (faults.h).
  double lose = 0;
  double cut = 0;
  double delay = 0;
  std::vector<Kill> kills;
  std::vector<Pause> pauses;
  // A pause of half or almost twice kDeadAfterOfLongPause. A run with a long pause has no other faults. After
  // the longer one, the other workers have declared the worker dead, and it learns that.
  std::optional<Pause> long_pause;
  StoreFault store;
  bool graceful = true;
  // How long a worker waits for the others to join.
  absl::Duration join_timeout = absl::Seconds(20);
  // Threads of each worker's program, and operations of each thread.
  int threads = 2;
  int steps = 0;

  bool faulty() const { return lose > 0 || cut > 0 || delay > 0; }
  // Whether no fault of the run delays calls. Then calls have long timeouts, and none may exceed its
  // deadline. (A killed worker does not delay calls: calls to it fail at once. No call needs the store.)
  bool undelayed() const { return !faulty() && pauses.empty(); }
  // A worker becomes suspect during a pause of medium length. Only a killed worker or one with a long pause
  // becomes dead.
  static constexpr absl::Duration kHeartbeat = absl::Milliseconds(40);
  static constexpr absl::Duration kSuspectAfter = absl::Milliseconds(130);
  static constexpr absl::Duration kDeadAfterOfLongPause = absl::Seconds(4);
  // The worker that the others declare dead because of its long pause, although its process lives.
  std::optional<int> outcast() const {
    if (!long_pause || long_pause->length < kDeadAfterOfLongPause) return std::nullopt;
    return long_pause->worker;
  }
  std::string to_string() const;
};

Plan make_plan(uint64_t seed);

std::string worker_name(int worker);

}  // namespace chaos
