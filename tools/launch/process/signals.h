#pragma once

#include <signal.h>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {

// The signals that the launcher passes on (INT, TERM, HUP, QUIT, except those it was started with ignored, as
// nohup does), as a descriptor for the event loop. They stay blocked to the end of the process. Make it
// before there are other threads: they inherit the mask.
class LaunchSignals {
 public:
  static absl::StatusOr<LaunchSignals> block();

  int fd() const { return fd_.get(); }
  // The next signal that has arrived, or 0. fd() is readable when there is one.
  int next();

  // What programs are started with.
  const sigset_t& original_mask() const { return original_mask_; }
  bool sigpipe_was_ignored() const { return sigpipe_was_ignored_; }

 private:
  LaunchSignals() = default;

  Descriptor fd_;
  sigset_t original_mask_;
  bool sigpipe_was_ignored_ = false;
};

}  // namespace gradwire::tools
