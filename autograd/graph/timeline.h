#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "gradwire/base/mutex.h"

namespace gradwire::autograd {

// Tells of two nodes on one worker which is the older one in the order in which a single process would have
// made all nodes of a context. libtorch's engine runs the youngest node first, so this is also the order in
// which it adds up gradients.
//
// In that order a call is a part of its caller, at the moment of the call. Each call of the context that a
// worker serves is a frame, and so is the program that opened the context. A frame's path holds, for each
// call that leads to it from the outermost program, the moment in the caller at which it was made; it travels
// with the request (Graph.position).
//
// libtorch numbers nodes for each thread. A stretch is what a thread does for one frame without a break: the
// timeline knows each stretch's thread and first number, so that (thread, number) leads to the frame and the
// moment in it.
//
// Threads that work for one frame at the same time have no order in a single process. Here the stretch that
// began first is the older one.
//
// Thread-safe. Holds no tensors.
class Timeline {
 public:
  // A moment in a frame: `tick` counts from the beginning of the stretch, stretches from that of the frame.
  struct Moment {
    uint64_t stretch = 0;
    uint64_t tick = 0;
    auto operator<=>(const Moment&) const = default;
  };
  using Path = absl::InlinedVector<Moment, 4>;
  // Calls nested deeper than this are ordered among themselves by when they arrived.
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
    // Guarded by the timeline's mutex: how many stretches have begun, and which one did last.
    uint64_t stretches_ = 0;
    uint64_t last_stretch_ = 0;
  };

  struct Place {
    // nullptr: made outside of the context, and older than all that was made inside. Valid while the timeline
    // lives.
    const Frame* frame = nullptr;
    // Outside, instead of stretch and tick: the thread and its number.
    Moment moment;
  };

  // The frame of the program that opened the context. Valid while the timeline lives.
  std::shared_ptr<Frame> program() { return std::shared_ptr<Frame>(std::shared_ptr<void>(), &program_); }
  std::shared_ptr<Frame> add_frame(Path path);

  // The calling thread, known as `thread`, works for `frame` from its number `number` on.
  void enter(const std::shared_ptr<Frame>& frame, uint64_t thread, uint64_t number);
  // The calling thread has made nothing since enter() with the same arguments.
  void leave_unused(const Frame& frame, uint64_t thread, uint64_t number);

  // Where the node with this number of this thread stands.
  Place place(uint64_t thread, uint64_t number) const;
  // The path of a call that is made at that moment.
  Path path_of_call(uint64_t thread, uint64_t number) const;

  // A strict weak order. Does not lock.
  static bool older(const Place& a, const Place& b);

  // For tests: stretches that are remembered.
  std::size_t stretches() const;

 private:
  struct Stretch {
    uint64_t begin = 0;
    std::shared_ptr<Frame> frame;
    uint64_t stretch = 0;
  };

  // The stretches of one thread, in ascending order of `begin`.
  struct Thread {
    uint64_t id = 0;
    absl::InlinedVector<Stretch, 1> stretches;
  };

  Frame program_;

  std::atomic<uint64_t> frames_{0};
  mutable Mutex mutex_;
  // In ascending order of their ids. A few, in most contexts one.
  absl::InlinedVector<Thread, 1> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::autograd
