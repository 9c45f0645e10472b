#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "gradwire/base/polling/spin_wait.h"

namespace gradwire {

// A source of work that must be polled, such as messages from other processes. Any thread can poll it.
//
// One thread at a time drives the poller: a pool thread without a task, or a thread that waits for an answer.
// So the thread that needs the data receives it itself, and no other thread has to wake it.
//
//   if (poller.try_enter()) {
//     SpinWait wait(policy);
//     while (!done && (poller.poll() != Poller::kNothing ? wait.renew() : wait.rest())) {}
//     poller.leave();
//   }
//
// Thread-safe. Methods marked (driver) may be called only by the thread that has entered. An exception would
// leave the poller without a driver and with nobody who may become one, so the work that it handles is
// contained.
class Poller {
 public:
  virtual ~Poller() = default;

  // Makes the calling thread the driver. Returns false while another thread drives.
  virtual bool try_enter() noexcept = 0;
  // The result of a poll: kNothing, kWork for work that is not a message, otherwise the identity of a
  // connection whose messages were handled.
  using Found = uint64_t;
  static constexpr Found kNothing = 0;
  static constexpr Found kWork = 1;
  // (driver) Handles all pending work without waiting.
  virtual Found poll() noexcept = 0;
  // (driver) Stops driving. Data that arrives from now on wakes the thread in sleep().
  virtual void leave() noexcept = 0;
  // (driver) Stops driving for a short time. Until then no thread is woken, but any thread may enter and
  // drive. The caller must soon drive again or send another thread. `several`: the caller runs more than one
  // task before it returns; their outgoing messages may be sent together at that time.
  virtual void pause(bool several) noexcept = 0;
  // Sends all messages of this thread's tasks that were held back to be sent together.
  virtual void flush() noexcept {}

  // Whether a waiting thread wants to drive. A driver that waits for nothing itself should then leave.
  virtual bool wanted() const = 0;
  virtual void want(bool yes) = 0;

  // Sleeps until there is work that no driver handles, until wake(), or for `at_most`; may return early. At
  // most one thread at a time may sleep, and it must not be the driver.
  virtual void sleep(absl::Duration at_most) = 0;
  // Makes the current sleep() return, or the next one if no thread sleeps. May be called from any thread.
  virtual void wake() = 0;
};

}  // namespace gradwire
