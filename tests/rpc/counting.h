#pragma once

#include <cstdint>

#include "gradwire/base/future.h"

// What the test's programs register: the server links it and names nothing of it.
namespace counting {

int64_t add(int64_t a, int64_t b);

class Tally {
 public:
  explicit Tally(int64_t start) : total_(start) {}
  int64_t count(int64_t by) { return total_ += by; }

 private:
  int64_t total_;
};

// Tells the caller that it has been called, then answers never.
gradwire::Future<void> hold();
void note_held();
// Completes with the first note_held() of this process.
gradwire::Future<void> held();

}  // namespace counting
