#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "gradwire/autograd/graph/timeline.h"
#include "gradwire/codec/id.h"

namespace gradwire::autograd {

// The context that the calling thread works in, the worker that it works for, and the call of the context
// that it serves. It names the context by id alone: a state captured for later must not keep a context alive.
//
// There is one object for each frame of a context's timeline on a worker. All of them share the end and the
// timeline, which are one allocation: programs open a context in every training step. Every thread slot and
// every captured state of the context holds one of these objects, so end() takes effect in all of them: a
// context can end while other threads, or outer frames of the same thread, still have it in their slots.
// Thread-safe.
class ActiveContext {
  struct Shared {
    Timeline timeline;
    std::atomic<bool> ended{false};
  };
  // Only serving() has one, which make_shared needs.
  struct Key {};

 public:
  // In the frame of the program that opened the context.
  ActiveContext(const rpc::Id& context, uint64_t worker)
      : id(context), self(worker), shared_(std::make_shared<Shared>()), frame_(shared_->timeline.program()) {}
  ActiveContext(Key, const ActiveContext& other, std::shared_ptr<Timeline::Frame> served)
      : id(other.id), self(other.self), shared_(other.shared_), frame_(std::move(served)) {}

  // The same context, for a thread that serves the call with this path.
  std::shared_ptr<const ActiveContext> serving(Timeline::Path path) const {
    return std::make_shared<const ActiveContext>(Key(), *this, timeline().add_frame(std::move(path)));
  }

  // The context was released on this worker. It is not current anywhere from now on.
  void end() { shared_->ended.store(true, std::memory_order_release); }
  bool ended() const { return shared_->ended.load(std::memory_order_acquire); }

  // Lives as long as an object of the context.
  Timeline& timeline() const { return shared_->timeline; }
  const std::shared_ptr<Timeline::Frame>& frame() const { return frame_; }

  const rpc::Id id;
  // The incarnation of the agent on whose behalf this thread works.
  const uint64_t self;

 private:
  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Timeline::Frame> frame_;
};

// The execution slot of the active context. Unlike ExecutionSlot it reports to the timeline which thread
// works for which frame. A slot may hold a context that has ended; current_context() does not return such a
// context.
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

// The context that is current on the calling thread; nullptr without one.
inline std::shared_ptr<const ActiveContext> current_context() {
  const std::shared_ptr<const ActiveContext>& active = ActiveContextSlot::get();
  return active == nullptr || active->ended() ? nullptr : active;
}

// The number that programs know a context by: equal on all workers, unique but for a chance of one in 2^63.
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
