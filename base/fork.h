#pragma once

#include <sys/types.h>

#include <atomic>
#include <utility>

#include "absl/strings/string_view.h"
#include "gradwire/base/mutex.h"

// The rules for fork(2). The problem: the child has a copy of each object that owns threads, descriptors or
// shared memory, but none of the threads, and it shares what is behind the descriptors with its parent. A
// mutex of the copy may be locked by a thread that the child does not have. So:
// 1. The child closes the descriptors of the library at once (own_descriptor).
// 2. An object that was made in another process does nothing. Its entries and its destructor ask its
//    ProcessMark (base/mutex.h) before they lock a mutex.
// 3. What the whole process has, for example its functions, belongs to the child too. Its mutex is a
//    ProcessMutex (base/mutex.h), or it is PerProcess.
namespace gradwire {

// Keeps the objects until the process ends. For the destructor of their owner in a forked child.
template <class... T>
void leak_after_fork(T&... objects) {
  ((void)new T(std::move(objects)), ...);
}

// An object of the process that is made when it is first used, and never destroyed. A forked child makes its
// own: in the parent's a mutex may be locked. Thread-safe, if T is. Must be a static variable.
template <class T>
class PerProcess {
 public:
  T& get() {
    Made* made = made_.load(std::memory_order_acquire);
    if (made != nullptr && made->mark.here()) return made->value;
    auto* const fresh = new Made;
    if (made_.compare_exchange_strong(made, fresh, std::memory_order_acq_rel)) return fresh->value;
    delete fresh;
    return made->value;
  }

 private:
  struct Made {
    ProcessMark mark;
    T value;
  };
  std::atomic<Made*> made_{nullptr};
};

// While an object exists, fork() waits in other threads. Surrounds the system call that makes a descriptor
// and own_descriptor(): a child that is forked in between would keep the descriptor. Meanwhile the thread
// must not block, take a lock or allocate memory. Keeps errno.
class ForkDelay {
 public:
  ForkDelay() noexcept;
  ~ForkDelay();
  ForkDelay(const ForkDelay&) = delete;
  ForkDelay& operator=(const ForkDelay&) = delete;
};

// A forked child closes `fd` before fork() returns there. Any thread may call these at any time. The owner of
// a descriptor gives it up before it closes it.
void own_descriptor(int fd) noexcept;
void disown_descriptor(int fd) noexcept;

// fork(2) for a child that goes on as this process would have: it keeps the descriptors, and all objects
// belong to it. REQUIRES: this process has no other threads, or the child soon calls exec().
pid_t fork_with_objects();

// Ends this process, a forked child whose only thread is about to do work of its parent. Writes one line to
// the standard error. `where` names the work.
[[noreturn]] void end_forked_child(absl::string_view where) noexcept;

}  // namespace gradwire
