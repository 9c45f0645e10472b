#pragma once

#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/base/mutex.h"

namespace gradwire::device {

// The streams of an accelerator on which one piece of work runs, such as a handler: at most one for each
// device. They belong to the work, not to the thread: an execution slot makes them current wherever the work
// goes on (base/threads/execution_state.h).
class WorkStreams {
 public:
  explicit WorkStreams(std::vector<c10::Stream> streams) : streams_(std::move(streams)) {}

  const std::vector<c10::Stream>& streams() const { return streams_; }

  // Streams of the accelerator's pool, one for each device in use; nullptr if none is in use.
  static std::shared_ptr<const WorkStreams> from_pool();

  // Makes the streams current on this thread, or, for nullptr, those that were current before any WorkStreams
  // were.
  static void set(std::shared_ptr<const WorkStreams> streams);
  // Whether one of them is current on this thread for the device.
  static bool covers(const c10::Device& device);
  // Returns the WorkStreams that are current on this thread; nullptr if it uses its own streams.
  static const std::shared_ptr<const WorkStreams>& get();

  // set() for a scope.
  class Scope {
   public:
    explicit Scope(std::shared_ptr<const WorkStreams> streams);
    ~Scope() { set(std::move(previous_)); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<const WorkStreams> previous_;
  };

 private:
  const std::vector<c10::Stream> streams_;
};

// One stream of the pool for each device, which stays the same. Thread-safe.
class LastingStreams {
 public:
  // The streams for the devices that are in use now; nullptr if none is.
  std::shared_ptr<const WorkStreams> get();

 private:
  Mutex mutex_;
  std::shared_ptr<const WorkStreams> streams_ ABSL_GUARDED_BY(mutex_);
};

// The accelerator of this process, as one of its devices names it; nullopt without one.
std::optional<c10::DeviceType> accelerator();
c10::DeviceIndex device_count();
// The devices of the accelerator that this process has begun to use. A device that is not in use must not be
// touched, because its first use takes memory and time.
std::vector<c10::Device> devices_in_use();

}  // namespace gradwire::device
