#pragma once

namespace gradwire::transport {

// For tests: what /proc says about this process. Only differences mean anything.
int count_descriptors();
int count_threads();
// A thread that has been joined stands there for a moment longer: waits, 30 s at most, until no more than `expected` are
// left, and returns how many.
int count_threads_down_to(int expected);

}  // namespace gradwire::transport
