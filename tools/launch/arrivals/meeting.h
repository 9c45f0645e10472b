#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/store/store.h"

namespace gradwire::tools {

// The first group of all workers of a round, as the store shows it (store/formation/formation_record.h).
struct Meeting {
  enum class State : uint8_t {
    // No worker has come to such a group.
    kNone,
    // Some workers have come and wait for the others.
    kGoingOn,
    // The group is complete, or was refused.
    kOver,
  };

  State state = State::kNone;
  // kGoingOn: the ranks that have come, in ascending order.
  std::vector<int> arrived;
};

// Reads it from the workers' store. Groups of another size than `world_size` are ignored. Of several groups
// that form at the same time it returns the one to which most workers have come. Takes at most `timeout`.
// Errors: those of the store.
absl::StatusOr<Meeting> read_meeting(store::Store& store, int64_t round, int world_size,
                                     absl::Duration timeout);

}  // namespace gradwire::tools
