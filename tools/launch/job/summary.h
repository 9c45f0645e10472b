#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::tools {

// What the launcher prints at the end of a failed job: the first failure in full and the others, in the order
// given, a line each; all of them workers'. Lines are at most 110 columns wide and end in '\n'; names that
// would break the columns are cut in the middle. What comes from other hosts is made fit for a terminal.
// Times are those of `zone`.
std::string failure_summary(absl::string_view program, const rendezvous::Failure& first,
                            const std::vector<rendezvous::Failure>& others,
                            absl::TimeZone zone = absl::LocalTimeZone());

}  // namespace gradwire::tools
