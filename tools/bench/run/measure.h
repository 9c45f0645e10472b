#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "gradwire/tools/bench/report/statistics.h"
#include "gradwire/tools/bench/run/clocks.h"
#include "gradwire/tools/bench/run/computation.h"

namespace gradwire::bench {

struct Timing {
  double seconds = 1;
  // Idle time before each call, as of a caller that waits for something else between calls.
  int64_t idle_us = 0;
  // Processor time for which the caller computes before each call. It is always subtracted.
  int64_t compute_us = 0;
  // Whether filling and checking the data takes much processor time. If so, that time is measured, so that it
  // can be subtracted.
  bool large = false;
  // The clock of the calls and of `seconds`, in nanoseconds.
  int64_t (*now)() = &nanoseconds;
};

// Measures sequential calls. Only call(i) is timed: before(i) changes the source, after(i) checks the result.
template <class Before, class Call, class After>
Measurement measure(const Timing& timing, Before before, Call call, After after) {
  constexpr int kMinCalls = 3;
  constexpr int kMaxSamples = 4'000'000;
  Measurement result;
  int64_t own_cpu = 0;
  const auto uncounted = [&](auto&& work) {
    if (!timing.large) return work();
    const int64_t start = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    work();
    own_cpu += nanoseconds(CLOCK_THREAD_CPUTIME_ID) - start;
  };
  std::optional<Computation> computation;
  if (timing.compute_us > 0) computation.emplace();
  int64_t i = 0;
  const auto once = [&] {
    uncounted([&] { before(i); });
    if (computation) own_cpu += computation->run(timing.compute_us);
    if (timing.idle_us > 0) {
      const timespec pause{.tv_sec = timing.idle_us / 1'000'000,
                           .tv_nsec = timing.idle_us % 1'000'000 * 1000};
      nanosleep(&pause, nullptr);
    }
    const int64_t start = timing.now();
    call(i);
    const int64_t end = timing.now();
    uncounted([&] { after(i); });
    ++i;
    return end - start;
  };

  // The processes slept while other systems were measured, so caches, clock frequencies and pools must warm
  // up.
  const int64_t warm_until = timing.now() + static_cast<int64_t>(std::min(0.1, timing.seconds / 4) * 1e9);
  for (int n = 0; n < 2 || timing.now() < warm_until; ++n) once();

  result.begin_ns = timing.now();
  const int64_t until = result.begin_ns + static_cast<int64_t>(timing.seconds * 1e9);
  result.micros.reserve(1 << 16);
  while (result.micros.size() < kMinCalls || (timing.now() < until && result.micros.size() < kMaxSamples)) {
    result.micros.push_back(static_cast<float>(static_cast<double>(once()) / 1000));
  }
  result.end_ns = timing.now();
  result.timed_calls = static_cast<int64_t>(result.micros.size());
  result.calls = i;
  result.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
  result.own_cpu_us = static_cast<double>(own_cpu) / 1000;
  return result;
}

// Measures with `depth` calls in flight: start(slot) begins the call of a slot, finish(slot) waits for its
// result and checks it. The calls are finished in the order in which they began.
template <class Start, class Finish>
Measurement measure_in_flight(double seconds, int depth, Start start, Finish finish) {
  Measurement result;
  for (int slot = 0; slot < depth; ++slot) start(slot);
  int slot = 0;
  const auto iterate = [&] {
    finish(slot);
    start(slot);
    slot = slot + 1 == depth ? 0 : slot + 1;
    ++result.calls;
  };
  const int64_t warm_until = nanoseconds() + static_cast<int64_t>(std::min(0.05, seconds / 4) * 1e9);
  while (nanoseconds() < warm_until) iterate();
  const int64_t before = result.calls;
  result.begin_ns = nanoseconds();
  const int64_t until = result.begin_ns + static_cast<int64_t>(seconds * 1e9);
  while (nanoseconds() < until) iterate();
  result.end_ns = nanoseconds();
  result.timed_calls = result.calls - before;
  result.seconds = static_cast<double>(result.end_ns - result.begin_ns) / 1e9;
  for (int n = 0; n < depth; ++n) {
    finish(slot);
    slot = slot + 1 == depth ? 0 : slot + 1;
  }
  result.calls += depth;
  return result;
}

}  // namespace gradwire::bench
