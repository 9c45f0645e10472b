#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {

// The signals that the launcher forwards to the workers, as a descriptor for the event loop: INT, TERM, HUP
// and QUIT, except those that were ignored when the launcher was started (as nohup does). They stay blocked
// until the process ends. Must be created before other threads are started, because threads inherit the mask.
class LaunchSignals {
 public:
  static absl::StatusOr<LaunchSignals> block();

  int fd() const { return fd_.get(); }
  // The next signal that has arrived, or 0. fd() is readable when there is one.
  int next();

  // The original state, with which workers are started.
  const sigset_t& original_mask() const { return original_mask_; }
  bool sigpipe_was_ignored() const { return sigpipe_was_ignored_; }

 private:
  LaunchSignals() = default;

  Descriptor fd_;
  sigset_t original_mask_;
  bool sigpipe_was_ignored_ = false;
};

}  // namespace gradwire::tools
