#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/polling/pause_tuner.h"
#include "gradwire/base/polling/poll_limits.h"
#include "gradwire/base/polling/spin_wait.h"

namespace gradwire {

// Learns at what intervals messages arrive from each of a few sources, and forecasts the next arrival. A
// source is regular if most of its last intervals have about the same length. Times are nanoseconds of one
// monotonic clock. Pure, not thread-safe.
class ArrivalForecast {
 public:
  // The time in which an arrival is expected.
  struct Window {
    int64_t begin;
    int64_t end;
  };

  // A message from `source` arrived after a silence. Follow-up messages of a burst must not be recorded.
  void record(uint64_t source, int64_t now);

  // Returns the window that begins first among those that have not ended. Nothing if no source is regular.
  std::optional<Window> next(int64_t now) const;

 private:
  static constexpr std::size_t kSources = 8;
  static constexpr std::size_t kIntervals = 8;

  struct Source {
    uint64_t id = 0;
    int64_t last = 0;
    // Number of recorded arrivals; the first one begins the first interval.
    std::size_t arrivals = 0;
    // The last intervals, in the order of a ring.
    std::array<int64_t, kIntervals> intervals = {};
    // The expected interval; `latest` is 0 if the source is not regular.
    int64_t earliest = 0;
    int64_t latest = 0;
  };
  static void learn(Source& source);
  Source& find(uint64_t id);

  std::array<Source, kSources> sources_;
};

// Nanoseconds of a time in a WaitPolicy. A negative one, of a deadline that has passed, counts as 0. The
// upper bound of a day keeps sums in range.
int64_t bounded_nanoseconds(absl::Duration duration);

// How a thread that waits spends the time between two polls.
enum class Rest : uint8_t { kPause, kYield, kSleep };

// Decides how the leader of a pool waits for messages: when it polls, and when and for how long it sleeps.
//
// A silence is the time from one message to the next. In each silence the thread
// 1. polls with pauses for WaitPolicy::pause, or longer where messages follow one another soon (PauseTuner);
// 2. if an arrival is forecast, sleeps until shortly before it, and then yields and polls until the forecast
//    window has passed;
// 3. without a forecast, yields and polls for at most WaitPolicy::yield;
// 4. sleeps until it is woken.
// Polling for as long as a wake-up takes costs no more than the wake-up. Polling beyond that is limited to
// the share WaitPolicy::share of one core on average, and to the time that the thread works between the
// silences (PollBudget).
//
// The thread does not poll beyond the pauses while another thread needs its core (CoreContention). But if the
// sender of the messages computes on the same core, a yield is the cheapest way to wait: the sender hands the
// core over when it begins to wait for the answer. The time of such a yield is not charged, and the thread
// does not sleep until a forecast.
//
// The calling thread executes the pauses, yields and sleeps. Not thread-safe.
class PollPace {
 public:
  using Now = int64_t (*)();
  static constexpr int64_t kForever = INT64_MAX;

  // `budget` and `contention` must outlive this object.
  PollPace(const WaitPolicy& policy, PollBudget& budget, CoreContention& contention,
           Now now = &monotonic_nanoseconds);

  // The thread becomes the leader again, after other work.
  void resume();
  // A poll found nothing: returns how to rest before the next one. kYield: call yielded() after the yield.
  // kSleep: sleep until sleep_until() at the latest, then call woke().
  Rest rest();
  void yielded();
  int64_t sleep_until() const { return sleep_until_; }
  void woke();
  // A poll found a message from `source`: the silence ends. Work that is not a message does not end it.
  void found(uint64_t source);
  // Whether the last message ended a long silence, and came from the same source as the ones before it. Then
  // no other message is expected soon.
  bool is_sole() const { return is_sole_; }

  // The longest time that a thread polls without charge, in nanoseconds: about the time that a wake-up takes.
  int64_t free_nanoseconds() const { return free_; }

 private:
  // The silence begins.
  void fall_silent();
  // Begins to poll at `now`: decides until when.
  void plan(int64_t now);
  // Ends polling at `now`, and charges it to the budget.
  void end_polling(int64_t now);
  // Takes the duration of the last yield into account, and returns it. Returns 0 if the thread has not
  // yielded since the last call.
  int64_t take_yield();
  // A yield that takes longer has run a thread that computes.
  int64_t long_yield() const;
  void note_oversleep(int64_t nanoseconds);
  // How long before an arrival the sleep must end.
  int64_t lead_time() const { return oversleep_ + 2 * oversleep_deviation_; }

  const int64_t pause_;
  const int64_t yield_;
  PollBudget& budget_;
  CoreContention& contention_;
  const Now now_;

  // Since when the thread has worked: the end of the last silence, unless that one was too short to read the
  // clock. 0: not known.
  int64_t work_begin_ = 0;
  // The begin of the silence; 0: no poll has failed since the last message.
  int64_t silence_begin_ = 0;
  // How long the thread pauses in this silence.
  int64_t pause_now_ = 0;
  uint32_t polls_ = 0;
  // The begin and the planned end of polling; 0: not polling yet.
  int64_t poll_begin_ = 0;
  int64_t poll_until_ = 0;
  // The end of the forecast window for which the thread sleeps; 0: none.
  int64_t window_end_ = 0;
  int64_t sleep_until_ = kForever;
  // Whether a forecast made the thread poll in this silence.
  bool forecast_used_ = false;

  ArrivalForecast forecast_;
  // The source of the last messages that ended a silence, and their number.
  uint64_t last_source_ = 0;
  int from_last_source_ = 0;
  bool is_sole_ = false;

  // How much longer than intended a sleep lasts: moving averages.
  int oversleeps_ = 0;
  int64_t oversleep_;
  int64_t oversleep_deviation_ = 0;
  int64_t free_;

  // When the thread woke; 0: it has rested since.
  int64_t woke_at_ = 0;
  // The begin of the last yield.
  int64_t yield_begin_ = 0;
  // The duration of the last yield, until take_yield() has taken it into account; then 0.
  int64_t yield_took_ = 0;
  // How long other threads have computed on this core while the thread polled.
  int64_t away_ = 0;
  PauseTuner pauses_;
  // Whether the last silence ended when a thread that computed handed this core over.
  bool handed_over_ = false;
};

}  // namespace gradwire
