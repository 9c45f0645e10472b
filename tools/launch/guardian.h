#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "tools/launch/fd.h"

namespace gradwire::tools {

// A process that outlives a launcher killed with SIGKILL by one moment and kills what the launcher started.
// The kernel's parent-death signal reaches the workers themselves only; this reaches the whole process
// groups, so a worker that is a shell script leaves nothing behind either.
//
// It waits at the end of a pipe. Each worker writes its process group there before it executes its program;
// when the pipe closes the guardian kills the groups it was told and has not been told to forget.
//
// Not thread-safe. Owns the process: the destructor closes the pipe, which ends the groups that are left, and
// waits for its end.
class Guardian {
 public:
  // Forks; call it while the process has one thread, since the child runs more than exec. Unavailable if the
  // system refuses.
  static absl::StatusOr<Guardian> start();

  Guardian(Guardian&& other) noexcept;
  Guardian& operator=(Guardian&&) = delete;
  ~Guardian();

  // Where a worker writes its process group, before exec. Closed on exec.
  int registration_fd() const { return write_end_.get(); }

  // Forgets all groups: they have ended.
  void release();

 private:
  Guardian(Fd write_end, pid_t pid) : write_end_(std::move(write_end)), pid_(pid) {}

  Fd write_end_;
  pid_t pid_;
};

}  // namespace gradwire::tools
