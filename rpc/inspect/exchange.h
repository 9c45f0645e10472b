#pragma once

#include "absl/time/time.h"

namespace gradwire::rpc {

// When an observer asked a worker, and when the answer came, by the wall clock of the observer. The worker
// read its state in between.
struct Exchange {
  absl::Time asked = absl::InfinitePast();
  absl::Time answered = absl::InfinitePast();
};

}  // namespace gradwire::rpc
