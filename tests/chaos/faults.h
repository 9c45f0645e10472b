#pragma once

#include <atomic>
#include <memory>

#include "gradwire/tests/chaos/plan.h"
#include "gradwire/transport/transport.h"

namespace chaos {

// The faults of one worker, for all its transports:
//   - A request of the program, or its answer, may get lost while its connection stays open, if it contains
//   no
//     reference. Then the call exceeds its deadline.
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
  void begin() { active_->store(true); }
  // No fault occurs after this call.
  void end() { active_->store(false); }

 private:
  const Plan plan_;
  const int worker_;
  const bool lose_services_;
  int die_at_message_ = -1;
  std::shared_ptr<std::atomic<bool>> active_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<int>> messages_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace chaos
