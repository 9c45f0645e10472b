#pragma once

#include "absl/time/time.h"
#include "gradwire/base/clock.h"

namespace gradwire::store {

// Blocks the calling thread until the time `end` of `clock`. For the pauses between the attempts of a client.
void pause_until(Clock& clock, absl::Time end);

}  // namespace gradwire::store
