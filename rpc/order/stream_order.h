#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/stream_fence.h"

namespace gradwire::rpc {

// Orders the device work of the handlers of one agent with that of other threads. A handler sees what threads
// did to the memory of the host before their calls, and what handlers did that had ended before it. Through
// this object the same holds for the memory of devices: the streams of the handlers wait for it. Handlers
// among themselves need no order here, as long as they all run on the same streams (HandlerStreams).
// Thread-safe.
class StreamOrder {
 public:
  // The work of one handler, from begin() to end().
  struct Work {
    std::vector<StreamFencePtr> waited_for;
  };
  // Makes the current streams of this thread wait for all that was added or has ended. Lost devices are left
  // out: work on them fails by itself.
  void begin(Work& work);
  // Later work waits for what is on the current streams of this thread, which are those of begin() or wait
  // for them.
  void end(const Work& work);
  // Later work waits for what is on the current streams of this thread.
  void add();
  // As begin(), for a thread that only reads.
  void wait() const;

  // All that was added or has ended; nullptr if that is nothing.
  StreamFencePtr fence() const;

 private:
  mutable Mutex mutex_;
  std::vector<StreamFencePtr> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::rpc
