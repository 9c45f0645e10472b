#pragma once

#include "gradwire/base/threads/spin_wait.h"

namespace gradwire {

// Work that is found by looking for it: what arrives from other processes, for whichever thread looks.
//
// One thread drives at a time; whoever wants the news drives: a pool thread that has nothing else to do, or
// one that waits for an answer. So no thread stands between the arrival and the one who wants it.
//
//   if (poller.try_enter()) {
//     SpinWait wait(policy);
//     while (!done && (poller.poll() ? wait.renew() : wait.rest())) {}
//     poller.leave();
//   }
//
// Thread-safe; methods marked (driver) are for the thread that has entered.
class Poller {
 public:
  virtual ~Poller() = default;

  // Becomes the driver. False while another thread drives.
  virtual bool try_enter() = 0;
  // (driver) Does what there is to do, without waiting; whether there was anything.
  virtual bool poll() = 0;
  // (driver) Ends driving. What arrives from now on wakes a thread in sleep().
  virtual void leave() = 0;
  // (driver) Ends driving for a short time: nobody is woken meanwhile, and whoever comes may drive. The
  // caller comes back soon, or somebody else is sent. `several`: it runs more than one task meanwhile, and
  // what they send may leave together when it is back.
  virtual void pause(bool several) = 0;
  // What this thread's tasks have sent since, and what was to leave together, leaves now.
  virtual void flush() {}

  // A thread that waits wants to drive, and one that drives for no purpose of its own should let it.
  virtual bool wanted() const = 0;
  virtual void want(bool yes) = 0;

  // Sleeps until there is something to do that no driver does, or wake() was called; may return early.
  // For one thread at a time, which does not drive.
  virtual void sleep() = 0;
  // Makes the thread in sleep(), or the next that comes, return. May be called from any thread.
  virtual void wake() = 0;
};

}  // namespace gradwire
