#include "gradwire/base/monotonic_time.h"

#include <time.h>

namespace gradwire {

int64_t monotonic_nanoseconds() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace gradwire
