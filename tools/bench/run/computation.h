#pragma once

#include <cstdint>
#include <vector>

namespace gradwire::bench {

// The work of a caller between two calls: multiply-adds over an array that does not fit into the first cache
// of a core. Not thread-safe.
class Computation {
 public:
  Computation();
  // Computes on this thread, without sleeping, until the thread has used `microseconds` of processor time.
  // Checks the time about every five microseconds. Returns the used processor time in nanoseconds.
  int64_t run(int64_t microseconds);

 private:
  std::vector<float> values_;
};

}  // namespace gradwire::bench
