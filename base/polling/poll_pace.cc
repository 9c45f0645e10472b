#include "gradwire/base/polling/poll_pace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "gradwire/base/polling/pause_tuner.h"

namespace gradwire {
namespace {

// Number of intervals from which on a source can be regular.
constexpr std::size_t kMinIntervals = 4;
// The intervals of a regular source are at most this long. They differ by at most a twentieth of their length
// within these bounds: the shorter one is about the noise of a virtual machine, the longer one bounds what
// polling for one message may cost.
constexpr int64_t kMaxInterval = 50'000'000;
constexpr int64_t kSpreadShare = 20;
constexpr int64_t kMinSpread = 60'000;
constexpr int64_t kMaxSpread = 300'000;
// A window is longer than the spread of the intervals by this at each end.
constexpr int64_t kSlack = 5'000;

}  // namespace

void ArrivalForecast::record(uint64_t source, int64_t now) {
  Source& found = find(source);
  if (found.arrivals > 0) {
    found.intervals[(found.arrivals - 1) % kIntervals] = now - found.last;
    learn(found);
  }
  ++found.arrivals;
  found.last = now;
}

std::optional<ArrivalForecast::Window> ArrivalForecast::next(int64_t now) const {
  std::optional<Window> next;
  for (const Source& source : sources_) {
    if (source.latest == 0 || source.last + source.latest <= now) continue;
    const Window window = {source.last + source.earliest, source.last + source.latest};
    if (!next.has_value() || window.begin < next->begin) next = window;
  }
  return next;
}

// A disturbed call makes one or two intervals longer or shorter than the others. So with all eight intervals
// known, one at each end does not count.
void ArrivalForecast::learn(Source& source) {
  const std::size_t known = std::min(source.arrivals, kIntervals);
  source.latest = 0;
  if (known < kMinIntervals) return;
  std::array<int64_t, kIntervals> sorted = source.intervals;
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(known));
  const std::size_t outliers = known == kIntervals ? 1 : 0;
  const int64_t shortest = sorted[outliers];
  const int64_t longest = sorted[known - 1 - outliers];
  if (longest > kMaxInterval) return;
  if (longest - shortest > std::clamp(shortest / kSpreadShare, kMinSpread, kMaxSpread)) return;
  source.earliest = shortest - kSlack;
  source.latest = longest + kSlack;
}

// A new source replaces the one that has been silent for longest.
ArrivalForecast::Source& ArrivalForecast::find(uint64_t id) {
  for (Source& source : sources_) {
    if (source.arrivals > 0 && source.id == id) return source;
  }
  Source& oldest = *std::min_element(sources_.begin(), sources_.end(),
                                     [](const Source& a, const Source& b) { return a.last < b.last; });
  oldest = Source{.id = id};
  return oldest;
}

namespace {

// About the shortest time that the scheduler gives to a thread that computes.
constexpr int64_t kTimeSlice = 1'500'000;
// A yield that takes longer has run a thread that computes.
constexpr int64_t kSharedCore = 20'000;
// A message that arrives sooner than this after the last one belongs to the same burst.
constexpr int64_t kBurst = 20'000;
// The conditions of is_sole().
constexpr int64_t kLongSilence = 150'000;
constexpr int kMinFromSource = 4;
// Polling after a message although its successor is forecast for much later.
constexpr int64_t kBriefPoll = 5'000;
// Number of sleeps that are measured before the measurements count.
constexpr int kMinOversleeps = 4;
constexpr int64_t kMeasuredSleep = 200'000;
// Work that takes longer is not done by the thread that polls.
constexpr int64_t kMaxWork = 1'000'000;
// The bounds of free_, and the weight of a new measurement.
constexpr int64_t kMinFree = 30'000;
constexpr int64_t kMaxOversleep = 300'000;
constexpr int64_t kWeight = 8;

}  // namespace

int64_t bounded_nanoseconds(absl::Duration duration) {
  return absl::ToInt64Nanoseconds(std::clamp(duration, absl::ZeroDuration(), absl::Hours(24)));
}

PollPace::PollPace(const WaitPolicy& policy, PollBudget& budget, CoreContention& contention, Now now)
    : pause_(bounded_nanoseconds(policy.pause)),
      yield_(bounded_nanoseconds(policy.yield)),
      budget_(budget),
      contention_(contention),
      now_(now),
      oversleep_(std::min(yield_, kMaxOversleep)),
      free_(yield_) {}

Rest PollPace::rest() {
  if (pause_ == 0 && yield_ == 0) return Rest::kSleep;
  if (silence_begin_ == 0) fall_silent();
  woke_at_ = 0;
  if (poll_begin_ == 0 && ++polls_ % kPausesPerClock != 0) return Rest::kPause;
  const int64_t now = now_();
  if (poll_begin_ == 0) {
    if (now - silence_begin_ < pause_now_) return Rest::kPause;
    plan(now);
  }
  contention_.yielded(take_yield(), now, long_yield());
  if (now < poll_until_ && !contention_.is_high(now)) {
    yield_begin_ = now;
    return Rest::kYield;
  }
  end_polling(now);
  if (sleep_until_ <= now) {
    sleep_until_ = kForever;
    window_end_ = 0;
  }
  // A short sleep measures how long a wake-up takes on this machine.
  if (sleep_until_ == kForever && oversleeps_ < kMinOversleeps) sleep_until_ = now + kMeasuredSleep;
  return Rest::kSleep;
}

void PollPace::yielded() { yield_took_ = std::max<int64_t>(1, now_() - yield_begin_); }

int64_t PollPace::long_yield() const {
  return pauses_.proven() ? PauseTuner::kLongestTurn : CoreContention::kLongYield;
}

int64_t PollPace::take_yield() {
  const int64_t took = std::exchange(yield_took_, 0);
  if (took >= kSharedCore) away_ += took;
  return took;
}

void PollPace::fall_silent() {
  silence_begin_ = now_();
  if (work_begin_ != 0) budget_.earn(std::min(silence_begin_ - work_begin_, kMaxWork));
  work_begin_ = silence_begin_;
  pause_now_ = std::max(pause_, std::min(pauses_.nanoseconds(), pause_ + yield_));
  polls_ = 0;
  is_sole_ = false;
}

void PollPace::plan(int64_t now) {
  poll_begin_ = now;
  poll_until_ = now;
  away_ = 0;
  window_end_ = 0;
  sleep_until_ = kForever;
  if (contention_.is_high(now)) return;
  const int64_t budget = std::max<int64_t>(0, budget_.left(now));
  const auto window = handed_over_ ? std::nullopt : forecast_.next(now);
  if (window.has_value()) {
    const int64_t begin = window->begin - lead_time();
    if (begin <= now + free_) {
      poll_until_ = std::clamp(window->end, now + free_, now + free_ + budget);
      forecast_used_ = window->end > now + free_;
    } else if (window->end - begin <= budget) {
      poll_until_ = now + kBriefPoll;
      window_end_ = window->end;
      sleep_until_ = begin;
    }
    // A window that the budget does not allow is left to the wake-up.
    return;
  }
  poll_until_ = silence_begin_ + std::min(yield_ + pause_, free_ + budget);
}

// If the silence goes on, the thread does not begin to poll anew: it sleeps on if the next poll finds
// nothing.
void PollPace::resume() {
  if (poll_begin_ == 0) return;
  poll_begin_ = now_();
  poll_until_ = poll_begin_;
  away_ = 0;
  yield_took_ = 0;
}

void PollPace::woke() {
  if (silence_begin_ == 0) {
    // The thread has slept without a silence, because another one wanted to drive. That is not work.
    work_begin_ = 0;
    return;
  }
  resume();
  woke_at_ = poll_begin_;
  // Woken before the time, by a message or for another reason: if the next poll finds nothing, the thread
  // sleeps on.
  if (poll_begin_ < sleep_until_) return;
  note_oversleep(poll_begin_ - sleep_until_);
  if (window_end_ != 0) {
    poll_until_ = std::max(window_end_, poll_begin_);
    forecast_used_ = true;
  }
  window_end_ = 0;
  sleep_until_ = kForever;
}

void PollPace::found(uint64_t source) {
  is_sole_ = false;
  if (silence_begin_ == 0) return;
  if (polls_ >= kPausesPerClock || poll_begin_ != 0) {
    // The poll that found the message has also handled it. So the time before that poll counts.
    const int64_t now = yield_took_ != 0 ? yield_begin_ + yield_took_ : woke_at_ != 0 ? woke_at_ : now_();
    work_begin_ = now;
    const int64_t longest = pauses_.proven() ? PauseTuner::kLongestTurn : kTimeSlice;
    pauses_.learn(now - silence_begin_, yield_took_ > PauseTuner::kShortestTurn && yield_took_ < longest);
    if (now - silence_begin_ >= kBurst) {
      forecast_.record(source, now);
      from_last_source_ = source == last_source_ ? from_last_source_ + 1 : 1;
      last_source_ = source;
      is_sole_ = now - silence_begin_ >= kLongSilence && from_last_source_ >= kMinFromSource;
    }
    const int64_t took = take_yield();
    // A shorter yield was probably the sender's own time: it gave this thread the core when it began to wait.
    if (took >= longest) contention_.yielded(took, now, longest);
    handed_over_ = took >= kSharedCore && took < longest;
    if (handed_over_) contention_.returned();
    end_polling(now);
  } else {
    pauses_.learn(0, false);
  }
  silence_begin_ = 0;
  poll_begin_ = 0;
  woke_at_ = 0;
  window_end_ = 0;
  sleep_until_ = kForever;
  forecast_used_ = false;
  yield_took_ = 0;
}

void PollPace::end_polling(int64_t now) {
  if (poll_begin_ == 0) return;
  const int64_t polled = now - poll_begin_ - away_;
  budget_.spend(std::max<int64_t>(0, forecast_used_ ? polled : polled - free_));
  poll_begin_ = now;
  poll_until_ = now;
  away_ = 0;
  yield_took_ = 0;
}

void PollPace::note_oversleep(int64_t nanoseconds) {
  const int64_t late = std::min(nanoseconds, kMaxOversleep);
  if (oversleeps_ == 0) {
    oversleep_ = late;
    oversleep_deviation_ = late / 4;
  } else {
    oversleep_deviation_ += (std::abs(late - oversleep_) - oversleep_deviation_) / kWeight;
    oversleep_ += (late - oversleep_) / kWeight;
  }
  if (++oversleeps_ >= kMinOversleeps)
    free_ = std::clamp(oversleep_ + oversleep_ / 2, std::min(kMinFree, yield_), yield_);
}

}  // namespace gradwire
