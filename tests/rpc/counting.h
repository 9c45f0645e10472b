#pragma once

#include <cstdint>

#include "gradwire/base/futures/future.h"

// The functions and the class that the programs of these tests register. The server links them, but its code
// names none of them.
namespace counting {

int64_t add(int64_t a, int64_t b);

class Tally {
 public:
  explicit Tally(int64_t start) : total_(start) {}
  int64_t count(int64_t by) { return total_ += by; }

 private:
  int64_t total_;
};

// Calls note_held() on the caller. Its own call never ends.
gradwire::Future<void> hold();
void note_held();
// Returns a future that completes at the first note_held() of this process.
gradwire::Future<void> held();

}  // namespace counting
