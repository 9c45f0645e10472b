#pragma once

#include <signal.h>

#include <cstdint>

namespace gradwire {

// The maximum size of a file that this process may write (RLIMIT_FSIZE, `ulimit -f`), in bytes; UINT64_MAX
// without a limit.
uint64_t file_size_limit();

// While it exists, a call of this thread that would make a file larger than file_size_limit() only fails with
// EFBIG. Without it the kernel also sends SIGXFSZ to the thread, which ends the process by default. The limit
// applies to write(), pwrite() and ftruncate(), and also to memory files (memfd_create). Log files of a
// launcher or a shell are files too.
//
// The program's own SIGXFSZ stay as they were: those that were pending before, and those of other threads.
// Keeps errno. May be used in a signal handler. Costs one system call without a limit. For the thread that
// creates it.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal();
  ~NoFileSizeSignal();
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  // There is a limit, and no such signal was pending: one that is pending at the end is of this scope.
  bool active_ = false;
  sigset_t previous_mask_;
};

}  // namespace gradwire
