#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "gradwire/base/mutex.h"
#include "gradwire/tests/chaos/plan.h"
#include "gradwire/transport/fault_injection.h"
#include "gradwire/transport/transport.h"

namespace chaos {

// Says when the faults of one worker occur, and kills it in time. Thread-safe.
class FaultSchedule {
 public:
  // `die_at_message`: the number of the sent message before which the worker kills itself; below 0: never.
  explicit FaultSchedule(int die_at_message) : die_at_message_(die_at_message) {}

  void begin();
  void end();
  // Counts a message. Whether a fault may change it.
  bool admits_fault(gradwire::transport::Direction direction);
  bool kills() const { return die_at_message_ >= 0; }

 private:
  const int die_at_message_;
  gradwire::Mutex mutex_;
  bool active_ ABSL_GUARDED_BY(mutex_) = false;
  int sent_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The faults of one worker, for all its transports:
//   - A request of the program, or its answer, may get lost while its connection stays open, if it contains
//     no reference. Then the call exceeds its deadline.
//   - Any message may get lost together with its connection. On a real stream, messages with references and
//     messages of services get lost only in this way. With `lose_services`, they also get lost while their
//     connection stays open, which a stream never does.
//   - The worker may kill itself with SIGKILL before it sends a message.
// Thread-safe after the constructor.
class Faults {
 public:
  Faults(const Plan& plan, int worker, bool lose_services);

  std::unique_ptr<gradwire::transport::Transport> wrap(
      std::unique_ptr<gradwire::transport::Transport> transport);

  // Whether the plan has any fault for which wrap() is needed.
  bool any() const;
  // Call when the worker's program begins: messages are counted and faults occur from here on.
  void begin() { schedule_->begin(); }
  // No fault occurs after this call. If the worker is killing itself, the call does not return: a worker that
  // reports the end of its program lives on, as the driver assumes.
  void end() { schedule_->end(); }

 private:
  const Plan plan_;
  const int worker_;
  const bool lose_services_;
  const std::shared_ptr<FaultSchedule> schedule_;
};

}  // namespace chaos
