#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "gradwire/tests/chaos/call_log.h"
#include "gradwire/tests/chaos/plan.h"

namespace chaos {

// What is known of a run when its calls are looked at.
struct CallConditions {
  const Plan* plan = nullptr;
  // Killed, or paused for so long that they are dead.
  std::set<int> killed;
  // How long the caller was paused, or all stood still.
  absl::Duration paused;
  // The caller itself is dead to the others: its calls end, with whatever.
  bool outcast = false;
};

// What is wrong with a survivor's call, if anything.
std::optional<std::string> check_call(const CallRecord& call, const CallConditions& conditions);

std::string to_string(const CallRecord& call);

}  // namespace chaos
