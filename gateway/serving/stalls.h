#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"

namespace gradwire::gateway {

// Ends streams whose client neither reads nor sends. gRPC's flow control alone would let such a client keep
// the memory of its tensors until the deadline of the call. Thread-safe.
class Stalls {
 public:
  // `now` returns the current time.
  Stalls(absl::Duration timeout, std::function<absl::Time()> now) : timeout_(timeout), now_(std::move(now)) {}

  // One stream. arm() when the gateway begins to wait for the client, disarm() when that ends.
  class Watch {
   public:
    Watch(Stalls& stalls, std::function<void()> on_stall);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    void arm();
    void disarm();

   private:
    friend class Stalls;
    Stalls& stalls_;
    // Must not block. It may make and destroy watches on its thread.
    const std::function<void()> on_stall_;
    Mutex mutex_;
    absl::Time since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  };

  // Calls on_stall of the streams that have waited for longer than the timeout.
  void check();

 private:
  template <class F>
  void change(F function);

  const absl::Duration timeout_;
  const std::function<absl::Time()> now_;
  Mutex mutex_;
  HashSet<Watch*> watches_;
  // The thread that runs on_stall, with the lock held.
  std::atomic<std::thread::id> checking_{};
};

}  // namespace gradwire::gateway
