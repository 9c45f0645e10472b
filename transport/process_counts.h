#pragma once

#include <string>

namespace gradwire::transport {

// For tests: numbers of descriptors and threads of this process from /proc. Only differences have a meaning.
int count_descriptors();
int count_threads();
// A joined thread, or a descriptor that the other thread of a pair closes, stays in /proc for a moment. These
// functions wait, at most 30 s, until no more than `expected` are left, and return the number. They never
// return less than `expected`, since that count may have included entries that were about to disappear.
int count_threads_down_to(int expected);
int count_descriptors_down_to(int expected);

// For tests that must leave nothing in the process: the counts when it is made, to compare with later.
class ProcessCounts {
 public:
  // Waits as above. What has been left since then, as "1 descriptors, 2 threads"; empty if nothing.
  std::string left() const;

 private:
  const int descriptors_ = count_descriptors();
  const int threads_ = count_threads();
};

}  // namespace gradwire::transport
