#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace gradwire {

// The state that belongs to a piece of work rather than to the thread that executes it: the agent, the call,
// the autograd context, the grad mode. Each upper layer registers a slot. then(), co_await and executors
// capture the state when work is handed over and restore it where the work runs. So no state is lost across
// an await, and none leaks into the next work on the same thread.
//
// A value type: copy it freely. The default-constructed state is the clean state, in which a handler starts.
class ExecutionState {
 public:
  static constexpr std::size_t kMaxSlots = 8;
  using Value = std::shared_ptr<const void>;

  ExecutionState() = default;

  // The state of the calling thread.
  static ExecutionState capture();

  // Makes this the calling thread's state.
  void restore() const;
  // The same, and becomes the state that the thread had.
  void exchange();
  // Makes the clean state the calling thread's.
  static void clear();

 private:
  std::array<Value, kMaxSlots> values_;
};

// Functions for one piece of thread-local state that is stored elsewhere.
struct ExecutionSlotHooks {
  ExecutionState::Value (*capture)();
  // Sets the piece to `value`, which gets the previous one. nullptr is the clean state.
  void (*exchange)(ExecutionState::Value& value);
};

// Registers a slot. Must be called during static initialisation, at most kMaxSlots times in total.
void register_execution_slot(ExecutionSlotHooks hooks);

// Sets the thread's state to `state`; the destructor restores the previous state.
class ScopedExecutionState {
 public:
  explicit ScopedExecutionState(ExecutionState state) : other_(std::move(state)) { other_.exchange(); }
  // The clean state.
  ScopedExecutionState() { other_.exchange(); }
  ~ScopedExecutionState() { other_.exchange(); }
  ScopedExecutionState(const ScopedExecutionState&) = delete;
  ScopedExecutionState& operator=(const ScopedExecutionState&) = delete;

 private:
  // The previous state of the thread.
  ExecutionState other_;
};

// A slot that holds a shared_ptr<const T>; one slot for each Tag.
//   using CurrentCall = ExecutionSlot<CallContext>;
//   CurrentCall::Scope scope(context);  ... CurrentCall::get() ...
template <class T, class Tag = T>
class ExecutionSlot {
 public:
  static const std::shared_ptr<const T>& get() {
    (void)registered_;
    return value_;
  }
  static void set(std::shared_ptr<const T> value) {
    (void)registered_;
    value_ = std::move(value);
  }

  class Scope {
   public:
    explicit Scope(std::shared_ptr<const T> value) : previous_(get()) { set(std::move(value)); }
    ~Scope() { set(std::move(previous_)); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    std::shared_ptr<const T> previous_;
  };

 private:
  static inline thread_local std::shared_ptr<const T> value_;
  static inline const bool registered_ = [] {
    register_execution_slot({[] { return ExecutionState::Value(value_); },
                             // Most slots are empty or unchanged.
                             [](ExecutionState::Value& value) {
                               if (value_ == value) return;
                               ExecutionState::Value previous = std::move(value_);
                               value_ = std::static_pointer_cast<const T>(std::move(value));
                               value = std::move(previous);
                             }});
    return true;
  }();
};

}  // namespace gradwire
