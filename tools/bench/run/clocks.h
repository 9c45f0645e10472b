#pragma once

#include <sys/resource.h>
#include <time.h>

#include <cstdint>

namespace gradwire::bench {

inline int64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// The monotonic clock of this machine.
inline int64_t nanoseconds() { return nanoseconds(CLOCK_MONOTONIC); }

// User and system time of this process and its threads.
inline double cpu_microseconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto micros = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec);
  };
  return micros(usage.ru_utime) + micros(usage.ru_stime);
}

}  // namespace gradwire::bench
