#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/log/progress.h"
#include "gradwire/base/mutex.h"

namespace gradwire {

// For tests: keeps the different states of a Progress, in the order in which each was logged first.
// Thread-safe.
class RecordedProgress : public ProgressOutput {
 public:
  bool enabled() const override { return true; }
  bool can_move() const override { return false; }
  void draw(const void*, absl::string_view) override {}
  void clear(const void*) override {}
  void log(const ProgressState& state, absl::Duration, bool) override {
    MutexLock lock(mutex_);
    const auto same = [&](const ProgressState& other) { return other.text == state.text; };
    if (std::none_of(states_.begin(), states_.end(), same)) states_.push_back(state);
    changed_.notify_all();
  }

  std::vector<ProgressState> states() {
    MutexLock lock(mutex_);
    return states_;
  }
  std::vector<std::string> texts() {
    std::vector<std::string> texts;
    for (const ProgressState& state : states()) texts.push_back(state.text);
    return texts;
  }
  // Waits until there are `count` different states, at most a minute.
  void wait_for(std::size_t count) {
    const absl::Time deadline = Clock::system().now() + absl::Minutes(1);
    MutexLock lock(mutex_);
    while (states_.size() < count && Clock::system().now() < deadline) {
      changed_.wait_for(mutex_, deadline - Clock::system().now());
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<ProgressState> states_ ABSL_GUARDED_BY(mutex_);
};

// A clock on which ten seconds pass with each of the first `steps` calls of now(), so that progress is due at
// once. Thread-safe.
class HurriedClock : public Clock {
 public:
  explicit HurriedClock(int steps = 100) : left_(steps) {}
  absl::Time now() const override {
    MutexLock lock(mutex_);
    if (left_ > 0) {
      --left_;
      now_ += absl::Seconds(10);
    }
    return now_;
  }
  void wait_until(Mutex& mutex, CondVar& condition, absl::Time) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    condition.wait_for(mutex, absl::Milliseconds(10));
  }

 private:
  mutable Mutex mutex_;
  mutable int left_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch();
};

}  // namespace gradwire
