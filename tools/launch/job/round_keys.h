#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/store/interface/store.h"

namespace gradwire::tools {

// Removes the keys that PyTorch's process groups and its RPC left in a round that has ended, so that its
// members are not taken for those of the next round. DeadlineExceeded if that takes longer than until
// `deadline`, a time of `clock`; otherwise the store's errors.
absl::Status remove_round_keys(store::Store& store, Clock& clock, absl::Time deadline);

}  // namespace gradwire::tools
