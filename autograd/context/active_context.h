#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// The context that the calling thread works in, the worker that it works for, and the call of the context
// that it serves. It refers to the context by id only: a captured state must not keep a context alive.
//
// There is one object for each frame of a context's timeline on a worker. These objects share the `ended`
// flag and the timeline, which are one allocation, because programs open a context in every training step.
// Every thread slot and every captured state of the context holds one of these objects, so end() takes effect
// in all of them: a context can end while other threads, or outer frames of the same thread, still have it in
// their slots. Thread-safe.
class ActiveContext {
  struct Shared {
    Timeline timeline;
    std::atomic<bool> ended{false};
  };
  // Makes the second constructor, which std::make_shared needs as a public one, usable by serving() only.
  struct Key {};

 public:
  // A new context, in the frame of the program that opened it.
  ActiveContext(const rpc::Id& context, uint64_t worker)
      : id(context), self(worker), shared_(std::make_shared<Shared>()), frame_(shared_->timeline.program()) {}
  ActiveContext(Key, const ActiveContext& other, std::shared_ptr<Timeline::Frame> served)
      : id(other.id), self(other.self), shared_(other.shared_), frame_(std::move(served)) {}

  // Returns the same context for a thread that serves the call with this path.
  std::shared_ptr<const ActiveContext> serving(Timeline::Path path) const {
    return std::make_shared<const ActiveContext>(Key(), *this, timeline().add_frame(std::move(path)));
  }

  // Marks the context as released on this worker. It is not current on any thread from now on.
  void end() { shared_->ended.store(true, std::memory_order_release); }
  bool ended() const { return shared_->ended.load(std::memory_order_acquire); }

  // Lives as long as any of these objects of the context.
  Timeline& timeline() const { return shared_->timeline; }
  const std::shared_ptr<Timeline::Frame>& frame() const { return frame_; }

  const rpc::Id id;
  // The incarnation of the agent on whose behalf this thread works.
  const uint64_t self;

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Timeline::Frame> frame_;
};

// The thread-local slot of the active context, which is part of ExecutionState. Unlike ExecutionSlot it also
// reports to the timeline which thread works for which frame. A slot may hold a context that has ended;
// current_context() does not return such a context.
class ActiveContextSlot {
 public:
  using Value = std::shared_ptr<const ActiveContext>;

  static const Value& get() { return value_; }
  static void set(Value value);

  class Scope {
   public:
    explicit Scope(Value value) : previous_(get()) { set(std::move(value)); }
    ~Scope() { set(std::move(previous_)); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Value previous_;
  };

 private:
  static inline thread_local Value value_;
  // The thread's sequence number when `value_` was set.
  static thread_local uint64_t entered_at_;
  static const bool registered_;
};

// Returns the context that is current on the calling thread, or nullptr.
inline std::shared_ptr<const ActiveContext> current_context() {
  const std::shared_ptr<const ActiveContext>& active = ActiveContextSlot::get();
  return active == nullptr || active->ended() ? nullptr : active;
}

// Returns the number that programs see as the id of a context. It is the same on all workers, and two
// contexts have the same number with a probability of 2^-63.
inline int64_t public_id(const rpc::Id& id) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const uint64_t mixed = mix(id.origin + mix(id.counter + 0x9e3779b97f4a7c15u)) & 0x7fffffffffffffffu;
  return mixed == 0 ? 1 : static_cast<int64_t>(mixed);
}

}  // namespace gradwire::autograd
