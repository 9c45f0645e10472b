#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/device/core/profile.h"
#include "gradwire/tests/device/core/shared.h"

namespace gradwire::lag {

// A stream of a device: a thread that runs kernels one after the other, each after a random delay. The calls
// return at once, as those of a CUDA stream. A kernel is a function. It must not keep device memory alive, or
// a program that frees memory too early would not be noticed.
//
// A kernel that throws loses the device, as an error inside a CUDA kernel does.
//
// Thread-safe. The thread starts with the first kernel and ends in stop().
class Stream {
 public:
  using Kernel = std::function<void()>;

  Stream(Shared& shared, int device, int64_t id);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  int device() const { return device_; }
  int64_t id() const { return id_; }
  // "lag:0, stream 3".
  std::string name() const;

  // Puts a kernel at the end of the stream. Fails with the device's error if the device is lost.
  absl::Status launch(Kernel kernel);
  // The same without a delay and without a failure: a lost device drops the kernel.
  void launch_at_once(Kernel kernel);
  // Makes everything that is put into this stream later wait until `point` is passed. Does not block the
  // host.
  absl::Status wait(const Point& point);
  // The present end of the stream.
  Point end() const;
  // Whether the stream has done everything. Fails with the device's error.
  absl::StatusOr<bool> query() const;
  // Blocks the calling thread until the stream has done everything that is in it now. `call` names the caller
  // in the list of waits.
  absl::Status synchronize(const std::string& call = "stream.synchronize");

  // Stops the stream at its present end, as a kernel that runs for a long time would, until release().
  void hold();
  // Lets the stream go on after all hold() so far.
  void release();

  // Drops what has not started, and ends the thread. Later kernels are dropped too. May be called twice.
  void stop();

  // The number of steps that are done.
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  // Whether the stream's thread has been started.
  bool started() const;

 private:
  friend class Shared;

  // A kernel, or a point to wait for, or a gate.
  struct Step {
    Kernel kernel;
    Point wait;
    uint64_t gate = 0;
    bool delayed = false;
  };

  // Says to the compiler that the mutex of the caller, a Shared, is the mutex of this stream.
  void assume_locked() const ABSL_ASSERT_EXCLUSIVE_LOCK(shared_.mutex_) {}
  void push_locked(Step&& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  bool ready_locked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  // Computes `done_`.
  void count_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  // Removes the steps that have not started. The caller destroys them without the lock.
  std::deque<Step> drop_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  void wake_if_ready_locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  void set_profile_locked(const Profile& profile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_.mutex_);
  void run();
  // Runs a kernel. Returns the message of its exception, or an empty string.
  static std::string run_kernel(const Kernel& kernel);

  Shared& shared_;
  const int device_;
  const int64_t id_;

  CondVar work_;
  std::deque<Step> steps_ ABSL_GUARDED_BY(shared_.mutex_);
  Delays delays_ ABSL_GUARDED_BY(shared_.mutex_);
  // The number of steps that were ever put into the stream.
  uint64_t submitted_ ABSL_GUARDED_BY(shared_.mutex_) = 0;
  uint64_t gates_ ABSL_GUARDED_BY(shared_.mutex_) = 0;
  uint64_t open_gates_ ABSL_GUARDED_BY(shared_.mutex_) = 0;
  // A kernel runs just now, or is delayed. It is not in `steps_`.
  bool running_ ABSL_GUARDED_BY(shared_.mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(shared_.mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(shared_.mutex_);

  // Changes only under the mutex. It is atomic so that Point::passed() does not need the mutex.
  std::atomic<uint64_t> done_ = 0;
};

}  // namespace gradwire::lag
