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
// As long as a nap may be. No call may be answered before the loss is over, and after it none can be.
constexpr int64_t kNapMicros = 1'000'000;
constexpr int64_t kMostNanos = 90'000'000'000;

void lose(const Task& task, pid_t victim) {
  if (task.case_name == "cut_link") {
    if (const absl::Status status = cut_link(victim); !status.ok()) {
      throw std::runtime_error(std::string(status.message()));
    }
  } else if (task.case_name == "killed_peer") {
    if (kill(victim, SIGKILL) != 0) throw std::runtime_error(std::strerror(errno));
  } else {
    throw std::invalid_argument("no case " + task.case_name);
  }
}

double milliseconds(int64_t nanos) { return static_cast<double>(nanos) / 1e6; }

}  // namespace

Measurement run_loss(LossObserver& observer, const Task& task) {
  const auto victim = static_cast<pid_t>(observer.process_of(kVictim));
  std::vector<absl::AnyInvocable<void()>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(observer.nap_async(kVictim, kNapMicros));
  // The calls arrive, and everybody is as quiet as a group that waits is.
  absl::SleepFor(absl::Milliseconds(100));

  const int64_t start = nanoseconds();
  lose(task, victim);
  int64_t noticed = 0;
  std::thread watcher;
  if (observer.can_notice()) {
    watcher = std::thread([&] {
      while (noticed == 0 && nanoseconds() < start + kMostNanos) {
        if (observer.is_lost(kVictim)) noticed = nanoseconds();
        // Often enough for figures in milliseconds, and seldom enough to leave the cores to those who are
        // measured.
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
      // What it is for.
    }
  }
  const int64_t failed = nanoseconds();
  if (watcher.joinable()) watcher.join();
  if (answered) throw std::runtime_error("a lost worker has answered");
  Measurement result{.calls = kCalls};
  result.figures.push_back({"in_flight_failed_ms", milliseconds(failed - start)});
  if (observer.can_notice()) {
    if (noticed == 0) throw std::runtime_error("a worker's loss was not noticed");
    result.figures.push_back({"noticed_ms", milliseconds(noticed - start)});
  }
  return result;
}

}  // namespace gradwire::bench
