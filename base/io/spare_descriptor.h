#pragma once

#include <sys/eventfd.h>

#include <cerrno>

#include "gradwire/base/io/descriptor.h"

namespace gradwire {

// Occupies the number of one descriptor for a moment of shortage. A process at its limit frees the number,
// receives a descriptor, uses and closes that one, and occupies the number again. Not thread-safe.
class SpareDescriptor {
 public:
  SpareDescriptor() { occupy(); }

  // Returns whether a number is free now that was not before. Another thread may take it.
  bool release() {
    const bool occupied = descriptor_.valid();
    descriptor_.reset();
    return occupied;
  }
  // Returns 0, or the errno if the process has no number for it. Does nothing if it is occupied.
  int occupy() {
    if (descriptor_.valid()) return 0;
    descriptor_ = Descriptor::from([&] { return ::eventfd(0, EFD_CLOEXEC); });
    return descriptor_.valid() ? 0 : errno;
  }

 private:
  Descriptor descriptor_;
};

}  // namespace gradwire
