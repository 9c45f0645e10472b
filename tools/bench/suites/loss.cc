#include "gradwire/tools/bench/suites/loss.h"

#include <signal.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/run/split_network.h"

namespace gradwire::bench {
namespace {

constexpr int kVictim = 1;
constexpr int kCalls = 8;
// Duration of a call: the maximum that sleep_for() allows. A call must not be answered before the worker is
// lost; afterwards it cannot be answered.
constexpr int64_t kNapMicros = 1'000'000;
constexpr int64_t kMaxNanos = 90'000'000'000;

// Kills the victim or cuts its link, depending on the case.
void lose(const Task& task, pid_t victim) {
  if (task.case_name == "cut_link") {
    if (const absl::Status status = cut_link(victim); !status.ok()) {
      throw std::runtime_error(std::string(status.message()));
    }
  } else if (task.case_name == "killed_peer") {
    if (kill(victim, SIGKILL) != 0) {
      throw std::runtime_error("cannot kill process " + std::to_string(victim) + ": " + std::strerror(errno));
    }
  } else {
    throw std::invalid_argument("unknown case " + task.case_name);
  }
}

double milliseconds(int64_t nanos) { return static_cast<double>(nanos) / 1e6; }

}  // namespace

Measurement run_loss(LossObserver& observer, const Task& task) {
  const auto victim = static_cast<pid_t>(observer.process_of(kVictim));
  std::vector<absl::AnyInvocable<void()>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(observer.nap_async(kVictim, kNapMicros));
  // Wait until the calls have arrived and all members are idle.
  absl::SleepFor(absl::Milliseconds(100));

  const int64_t start = nanoseconds();
  lose(task, victim);
  int64_t noticed = 0;
  std::thread watcher;
  if (observer.can_detect_loss()) {
    watcher = std::thread([&] {
      while (noticed == 0 && nanoseconds() < start + kMaxNanos) {
        if (observer.is_lost(kVictim)) noticed = nanoseconds();
        // Poll often enough for figures in milliseconds, but seldom enough not to disturb the measured
        // processes.
        absl::SleepFor(absl::Microseconds(100));
      }
    });
  }
  bool answered = false;
  for (auto& call : calls) {
    try {
      call();
      answered = true;
    } catch (const std::exception&) {
      // Expected: calls to a lost worker must fail.
    }
  }
  const int64_t failed = nanoseconds();
  if (watcher.joinable()) watcher.join();
  if (answered) throw std::runtime_error("a call to a lost worker succeeded");
  Measurement result{.calls = kCalls};
  result.figures.push_back({"in_flight_failed_ms", milliseconds(failed - start)});
  if (observer.can_detect_loss()) {
    if (noticed == 0) throw std::runtime_error("the loss of the worker was not detected within 90 s");
    result.figures.push_back({"noticed_ms", milliseconds(noticed - start)});
  }
  return result;
}

}  // namespace gradwire::bench
