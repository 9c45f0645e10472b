#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// Memory that another process writes to. While it is active, the event loop polls it. When no thread polls
// any more, it is armed: then its writer rings, that is, it writes to a descriptor that the loop watches,
// whose handler activates the memory again.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Handles the data that has arrived. Returns whether there was any.
  virtual bool poll_in_loop() = 0;
  // poll_in_loop() has thrown.
  virtual void failed_in_loop(const absl::Status& error) = 0;
  // Requests that the writer rings, or that it does not. After these the loop executes a full fence and then
  // calls has_data_in_loop().
  virtual void arm_in_loop() = 0;
  virtual void disarm_in_loop() = 0;
  // Whether poll_in_loop() would find data.
  virtual bool has_data_in_loop() = 0;

 private:
  friend class PolledMemory;
  std::atomic<bool> active_{false};
  // Number of consecutive rounds without data. Accessed only by the loop's driver.
  int idle_rounds_ = 0;
};

// The active memory that an event loop polls. activate() may be called from any thread; all other methods are
// for the loop's driver.
class PolledMemory {
 public:
  // Starts to poll `pollable`.
  void activate(const std::shared_ptr<Pollable>& pollable);
  // Stops to poll `pollable`. REQUIRES: activate() is not called with it any more.
  void forget_in_loop(const Pollable& pollable);

  // Polls all active memory. Returns an object where data had arrived, or nullptr. It may be destroyed.
  const Pollable* poll_in_loop() {
    if (has_activated_.load(std::memory_order_relaxed)) adopt_activated_in_loop();
    return active_.empty() ? nullptr : poll_each_in_loop();
  }
  void arm_in_loop();
  void disarm_in_loop();
  // Whether data has arrived since the memory was armed, or memory was activated.
  bool has_data_in_loop() const;
  // Deactivates memory that has been idle for a while, if much memory is active: from now on its writer must
  // ring. REQUIRES: the memory is armed, and a full fence was executed.
  void deactivate_idle_in_loop();
  // The same while the thread goes on polling, and no memory is armed.
  void retire_idle_in_loop();
  bool empty() const { return active_.empty(); }
  void clear() { active_.clear(); }

 private:
  void adopt_activated_in_loop();
  const Pollable* poll_each_in_loop();
  // Returns the first idle entries, at most so many that a few entries stay.
  std::vector<Pollable*> idle() const;

  // Accessed only by the loop's driver. Entries of forgotten memory are null.
  std::vector<std::shared_ptr<Pollable>> active_;

  std::atomic<bool> has_activated_{false};
  Mutex mutex_;
  std::vector<std::shared_ptr<Pollable>> activated_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
