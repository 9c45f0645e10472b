// LD_PRELOAD of this library makes the wall clock of a process one hour, 30 minutes and 30 seconds fast. The
// monotonic clocks stay right. The seconds are the tolerance for an answer that takes long.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" int clock_gettime(clockid_t clock, struct timespec* time) {
  const int result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += 5430;
  return result;
}
