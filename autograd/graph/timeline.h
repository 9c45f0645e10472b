#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// Decides which of two nodes on one worker is older, in the order in which a single process would have made
// all nodes of a context. libtorch's engine runs the youngest node first, so this order also determines in
// which order gradients are added.
//
// In that order a call is a part of its caller, at the moment of the call. A frame is one call of the context
// that a worker serves, or the program that opened the context. The path of a frame has one moment for each
// call that leads to it from the outermost program: the moment in the caller at which the call was made. The
// path is sent with the request (Graph.position).
//
// libtorch numbers nodes for each thread. An interval is the work of a thread for one frame without
// interruption. The timeline records the thread and the first number of each interval, so that it can find
// the frame, and the moment in the frame, for a pair (thread, number).
//
// Threads that work for one frame at the same time have no order in a single process. Here the interval that
// began first is the older one.
//
// Thread-safe. Holds no tensors.
class Timeline {
 public:
  // A moment in a frame: the number of the interval in the frame, and the number of ticks (sequence numbers)
  // since the beginning of the interval.
  struct Moment {
    uint64_t interval = 0;
    uint64_t tick = 0;
    auto operator<=>(const Moment&) const = default;
  };
  using Path = absl::InlinedVector<Moment, 4>;
  // Calls that are nested deeper than this are ordered by their arrival.
  static constexpr std::size_t kMaxDepth = 256;

  class Frame {
   public:
    Frame() = default;
    Frame(Path path, uint64_t number) : path_(std::move(path)), number_(number) {}

   private:
    friend class Timeline;

    const Path path_;
    // Unique in the timeline.
    const uint64_t number_ = 0;
    // Number of intervals that have begun. Guarded by the timeline's mutex, as the next member.
    uint64_t intervals_ = 0;
    // The interval that began last.
    uint64_t last_interval_ = 0;
  };

  // The position of a node in the order.
  struct Position {
    // nullptr for a node that was made outside the context: it is older than all nodes made inside. Valid
    // while the timeline lives.
    const Frame* frame = nullptr;
    // For a node outside the context, the thread and its sequence number instead of interval and tick.
    Moment moment;
  };

  // The frame of the program that opened the context. Valid while the timeline lives.
  std::shared_ptr<Frame> program() { return std::shared_ptr<Frame>(std::shared_ptr<void>(), &program_); }
  std::shared_ptr<Frame> add_frame(Path path);

  // Records that the calling thread, whose id is `thread`, works for `frame` from its sequence number
  // `number` on.
  void enter(const std::shared_ptr<Frame>& frame, uint64_t thread, uint64_t number);
  // Undoes enter() with the same arguments. The calling thread must have made no node since.
  void leave_unused(const Frame& frame, uint64_t thread, uint64_t number);

  // Returns the position of the node with this sequence number of this thread.
  Position place(uint64_t thread, uint64_t number) const;
  // Returns the path of a call that is made at that moment.
  Path path_of_call(uint64_t thread, uint64_t number) const;

  // Whether `a` is older than `b`. A strict weak order. Does not lock.
  static bool older(const Position& a, const Position& b);

  // For tests: number of intervals that are recorded.
  std::size_t intervals() const;

 private:
  struct Interval {
    uint64_t begin = 0;
    std::shared_ptr<Frame> frame;
    uint64_t interval = 0;
  };

  // The intervals of one thread, in ascending order of `begin`.
  struct Thread {
    uint64_t id = 0;
    absl::InlinedVector<Interval, 1> intervals;
  };

  Frame program_;

  std::atomic<uint64_t> frames_{0};
  mutable Mutex mutex_;
  // In ascending order of ids. Most contexts have one thread.
  absl::InlinedVector<Thread, 1> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
