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
  virtual bool has_news_in_loop() = 0;

 private:
  friend class HotMemory;
  std::atomic<bool> hot_{false};
  // Rounds in a row without news. Belongs to the loop's driver.
  int quiet_rounds_ = 0;
};

// The memory that an event loop polls because it is hot. heat() may be called from any thread; all else is
// for the loop's driver.
class HotMemory {
 public:
  // Polls `pollable` from now on.
  void heat(const std::shared_ptr<Pollable>& pollable);
  // Polls it no more. REQUIRES: nobody calls heat() with it any more.
  void forget_in_loop(const Pollable& pollable);

  // Whether anything had come.
  bool poll_in_loop() {
    if (has_heated_.load(std::memory_order_relaxed)) adopt_heated_in_loop();
    return !hot_.empty() && poll_each_in_loop();
  }
  void arm_in_loop();
  void disarm_in_loop();
  // Whether something has come since it was armed, or was heated.
  bool has_news_in_loop() const;
  // Leaves what stays quiet to its writer's ringing.
  void cool_in_loop();
  bool empty() const { return hot_.empty(); }
  void clear() { hot_.clear(); }

 private:
  void adopt_heated_in_loop();
  bool poll_each_in_loop();

  // Belongs to the loop's driver. Null where something was forgotten.
  std::vector<std::shared_ptr<Pollable>> hot_;

  std::atomic<bool> has_heated_{false};
  Mutex mutex_;
  std::vector<std::shared_ptr<Pollable>> heated_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::transport
