#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::transport {

// Memory that another process writes to. It is looked at while it is hot; when nobody looks any more it is
// armed: then the writer rings (writes to a descriptor that the loop watches, whose handler makes it hot
// again).
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Takes what has come; whether there was anything.
  virtual bool poll_in_loop() = 0;
  // Tells the writer to ring, or not to. The loop puts a full fence behind these, and then asks has_news.
  virtual void arm_in_loop() = 0;
  virtual void disarm_in_loop() = 0;
  // Something has come that poll_in_loop would find.
  virtual bool has_data_in_loop() = 0;

 private:
  friend class PolledMemory;
  std::atomic<bool> active_{false};
  // Rounds in a row without news. Belongs to the loop's driver.
  int quiet_rounds_ = 0;
};

// The memory that an event loop polls because it is hot. activate() may be called from any thread; all else
// is for the loop's driver.
class PolledMemory {
 public:
  // Polls `pollable` from now on.
  void activate(const std::shared_ptr<Pollable>& pollable);
  // Polls it no more. REQUIRES: nobody calls activate() with it any more.
  void forget_in_loop(const Pollable& pollable);

  // Whether anything had come.
  bool poll_in_loop() {
    if (has_activated_.load(std::memory_order_relaxed)) adopt_activated_in_loop();
    return !active_.empty() && poll_each_in_loop();
  }
  void arm_in_loop();
  void disarm_in_loop();
  // Whether something has come since it was armed, or was activated.
  bool has_data_in_loop() const;
  // Leaves what stays quiet to its writer's ringing.
  void cool_in_loop();
  bool empty() const { return active_.empty(); }
  void clear() { active_.clear(); }

 private:
  void adopt_activated_in_loop();
  bool poll_each_in_loop();

  // Belongs to the loop's driver. Null where something was forgotten.
  std::vector<std::shared_ptr<Pollable>> active_;

  std::atomic<bool> has_activated_{false};
  Mutex mutex_;
  std::vector<std::shared_ptr<Pollable>> activated_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
