#pragma once

#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "gradwire/tests/chaos/call_log.h"
#include "gradwire/tests/chaos/plan.h"

namespace chaos {

// The facts about a run and a caller that decide how a call may end.
struct CallConditions {
  const Plan* plan = nullptr;
  // Workers that were killed, or were paused for so long that they were declared dead.
  std::set<int> killed;
  // How long the caller was paused or the machine stood still.
  absl::Duration paused;
  // Whether the caller itself was declared dead. Then its calls must end, with any status.
  bool outcast = false;
};

// Checks a call that a surviving worker made. Returns what is wrong with it, or nullopt.
std::optional<std::string> check_call(const CallRecord& call, const CallConditions& conditions);

std::string to_string(const CallRecord& call);

}  // namespace chaos
