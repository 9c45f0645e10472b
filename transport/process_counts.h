#pragma once

namespace gradwire::transport {

// For tests: what /proc says about this process. Only differences mean anything.
int count_descriptors();
int count_threads();
// A thread that has been joined, and a descriptor that the other thread of a pair closes, stand there for a
// moment longer. These functions wait, 30 s at most, until no more than `expected` are left, and return how
// many there are. They never return less than `expected`, since that count may have included what was ending
// just before.
int count_threads_down_to(int expected);
int count_descriptors_down_to(int expected);

}  // namespace gradwire::transport
