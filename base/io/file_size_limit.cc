#include "gradwire/base/io/file_size_limit.h"

#include <sys/resource.h>

#include <cerrno>
#include <limits>

namespace gradwire {
namespace {

sigset_t file_size_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGXFSZ);
  return signals;
}

}  // namespace

uint64_t file_size_limit() {
  rlimit limit = {};
  const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? limit.rlim_cur : std::numeric_limits<uint64_t>::max();
}

// The signal of a write is sent to the thread that writes. So:
//   1. Block it, so that it stays pending.
//   2. If one was pending already, the program had blocked the signal. A further one changes nothing.
//   3. At the end, take the pending one away, and then restore the mask.
NoFileSizeSignal::NoFileSizeSignal() {
  if (file_size_limit() == std::numeric_limits<uint64_t>::max()) return;
  const int error = errno;
  const sigset_t signals = file_size_signal();
  sigset_t pending;
  if (::pthread_sigmask(SIG_BLOCK, &signals, &previous_mask_) == 0) {
    if (::sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 0) {
      active_ = true;
    } else {
      ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
    }
  }
  errno = error;
}

NoFileSizeSignal::~NoFileSizeSignal() {
  if (!active_) return;
  const int error = errno;
  const sigset_t signals = file_size_signal();
  const timespec no_wait = {};
  while (::sigtimedwait(&signals, nullptr, &no_wait) < 0 && errno == EINTR) {
  }
  ::pthread_sigmask(SIG_SETMASK, &previous_mask_, nullptr);
  errno = error;
}

}  // namespace gradwire
