#pragma once

#include <atomic>
#include <cstdint>

namespace gradwire {

// Reading the clock costs more than a pause, so a wait that pauses reads it once in this number of pauses.
inline constexpr uint32_t kPausesPerClock = 8;

// Learns for how long a wait should poll with pauses before it yields its core. A yield may run a thread that
// computes, and the scheduler takes the core back from that one only at its next tick, which is up to some
// milliseconds later. So a wait should rather pause while the message is expected soon. But if the sender
// needs this core, each pause delays the message.
//
// So waits pause for kLong while most of them end in that time. Otherwise the pauses are short, and kLong is
// tried from time to time. Thread-safe.
class PauseTuner {
 public:
  // Nanoseconds. Less than it takes to wake a thread.
  static constexpr int64_t kLong = 30'000;
  // A shorter yield has run no other thread. Nanoseconds.
  static constexpr int64_t kShortestTurn = 3'000;
  // If proven(), a yield that takes longer has run a thread other than the sender: one that computes.
  // Nanoseconds.
  static constexpr int64_t kLongestTurn = 200'000;

  // How long a wait that begins now should pause at least, in nanoseconds: kLong or 0.
  int64_t nanoseconds() const { return credit_.load(std::memory_order_relaxed) >= 0 ? kLong : 0; }
  // Whether many waits have ended soon lately.
  bool proven() const { return credit_.load(std::memory_order_relaxed) > kTrialCredit; }
  // A wait has taken `waited` nanoseconds. `ran_sender`: it has ended with a yield that has run the sender.
  void learn(int64_t waited, bool ran_sender) {
    const int credit = credit_.load(std::memory_order_relaxed);
    if (waited >= kLong || credit != kMostCredit) update(credit, waited < kLong, ran_sender);
  }

 private:
  // A wait that does not end soon costs this much: two of three must, or eight of nine where the sender needs
  // the core.
  static constexpr int kMiss = 2;
  static constexpr int kDelay = 8;
  static constexpr int kMostCredit = 16;
  static constexpr int kTrialCredit = 3;
  // Number of waits between two trials. It doubles if a trial fails.
  static constexpr int kFirstBreak = 8;
  static constexpr int kLongestBreak = 1024;

  void update(int credit, bool soon, bool ran_sender);

  // Not negative: pauses are long. Negative: the number of waits until the next trial. Concurrent updates may
  // be lost, which does no harm.
  std::atomic<int> credit_{kTrialCredit};
  std::atomic<int> next_break_{kFirstBreak};
};

}  // namespace gradwire
