#include "gradwire/base/threads/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace gradwire {

// FUTEX_PRIVATE_FLAG is not set, because the word may be in memory that processes share.

void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, absl::Duration at_most) {
  if (at_most <= absl::ZeroDuration()) return;
  const timespec time = absl::ToTimespec(at_most);
  // All results are ignored, and the caller reads the word again: the value differed already (EAGAIN), a
  // signal arrived (EINTR), or the time is over (ETIMEDOUT). No wake-up is lost: the kernel compares the
  // word with `value` in one step with going to sleep.
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, at_most == absl::InfiniteDuration() ? nullptr : &time,
            nullptr, 0);
}

int futex_wake_all(const std::atomic<uint32_t>& word) {
  return static_cast<int>(::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0));
}

}  // namespace gradwire
