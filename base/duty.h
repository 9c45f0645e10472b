#pragma once

#include <atomic>
#include <utility>

namespace gradwire {

// A thread on duty drives an event loop or runs timers: the other threads of the process, and other workers,
// wait for what it does next. So it never waits for a descriptor, for another thread or for another process,
// and it runs no code of the program. Everything that may wait asserts that its thread is not on duty.
namespace duty_internal {
inline thread_local int depth = 0;
inline thread_local std::atomic<const char*>* note = nullptr;
}  // namespace duty_internal

inline bool on_duty() { return duty_internal::depth > 0; }

// For a thread that begins and ends its duty in different functions. Calls may nest.
inline void begin_duty() { ++duty_internal::depth; }
inline void end_duty() { --duty_internal::depth; }

// The calling thread is on duty while the object lives.
class DutyScope {
 public:
  DutyScope() { begin_duty(); }
  ~DutyScope() { end_duty(); }
  DutyScope(const DutyScope&) = delete;
  DutyScope& operator=(const DutyScope&) = delete;
};

// The calling thread is not on duty while the object lives, because nobody waits for what it does next: the
// loop or the agent that it serves is at its end.
class OffDutyScope {
 public:
  OffDutyScope() : depth_(std::exchange(duty_internal::depth, 0)) {}
  ~OffDutyScope() { duty_internal::depth = depth_; }
  OffDutyScope(const OffDutyScope&) = delete;
  OffDutyScope& operator=(const OffDutyScope&) = delete;

 private:
  const int depth_;
};

// Sets where note_duty() of the calling thread stores its texts, which other threads may read; nullptr:
// nowhere.
inline void set_duty_note(std::atomic<const char*>* note) { duty_internal::note = note; }

// Notes what the calling thread does on duty, for the log line about a thread that stands still. `what`: a
// literal that follows "it handles". Costs one relaxed store.
inline void note_duty(const char* what) {
  if (duty_internal::note != nullptr) duty_internal::note->store(what, std::memory_order_relaxed);
}

}  // namespace gradwire
