#pragma once

#include <atomic>
#include <memory>

#include "gradwire/tests/chaos/plan.h"
#include "gradwire/transport/transport.h"

namespace chaos {

// The faults of one worker, for all its transports.
//
// A message may get lost while its connection goes on, if it is a program's request or the answer to one,
// without references in it: the call then runs into its deadline. Any message may get lost together with its
// connection: that is how a stream loses what carries references, and what workers tell each other about
// them. With `lose_services` these get lost by themselves too, which a stream does not do. The worker may
// also end, by SIGKILL, before a message leaves.
class Faults {
 public:
  Faults(const Plan& plan, int worker, bool lose_services);

  std::unique_ptr<gradwire::transport::Transport> wrap(
      std::unique_ptr<gradwire::transport::Transport> transport);

  // Whether there is anything that wrap() would do.
  bool any() const;
  // The worker's program begins: from here on messages count and meet faults.
  void begin() { active_->store(true); }
  // Nothing more happens.
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
