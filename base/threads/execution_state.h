#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

namespace gradwire {

// Everything that belongs to "the thing being executed" rather than to the thread that happens to execute it:
// the agent, the call, the autograd context, the grad mode. Upper layers register a slot each; then(),
// co_await and executors capture the state where work is handed over and restore it where it runs, so that
// nothing is lost across an await and nothing leaks into the next piece of work on the same thread.
//
// A value type: copy it freely. The default-constructed state is the clean one that a handler starts from.
class ExecutionState {
 public:
  static constexpr std::size_t kMaxSlots = 8;
  using Value = std::shared_ptr<const void>;

  ExecutionState() = default;

  // The state of the calling thread.
  static ExecutionState capture();

  // Makes this the calling thread's state.
  void restore() const;

 private:
  std::array<Value, kMaxSlots> values_;
};

// Captures and restores one piece of thread-local state that lives elsewhere. `restore` with nullptr makes it
// clean.
struct ExecutionSlotHooks {
  ExecutionState::Value (*capture)();
  void (*restore)(const ExecutionState::Value& value);
};

// Called during static initialisation, at most kMaxSlots times in all.
void register_execution_slot(ExecutionSlotHooks hooks);

// Runs a scope in `state` and gives the thread its own state back afterwards.
class ScopedExecutionState {
 public:
  explicit ScopedExecutionState(const ExecutionState& state) : previous_(ExecutionState::capture()) {
    state.restore();
  }
  ~ScopedExecutionState() { previous_.restore(); }
  ScopedExecutionState(const ScopedExecutionState&) = delete;
  ScopedExecutionState& operator=(const ScopedExecutionState&) = delete;

 private:
  ExecutionState previous_;
};

// A slot whose value is a shared_ptr to const T of its own, one for each Tag.
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
                             // Most slots are empty or unchanged: the comparison spares the reference counts.
                             [](const ExecutionState::Value& value) {
                               if (value_ != value) value_ = std::static_pointer_cast<const T>(value);
                             }});
    return true;
  }();
};

}  // namespace gradwire
