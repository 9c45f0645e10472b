#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/tools/launch/rendezvous/types.h"

namespace gradwire::tools {

// Returns the text that the launcher prints at the end of a failed job: the first failure of a worker in
// full, and the others in the order given, in one line each. Lines have at most 110 columns and end in '\n'.
// Names that are too long are cut in the middle. Text from other hosts is made safe for a terminal. Times
// are in the time zone `zone`.
std::string failure_summary(absl::string_view program, const rendezvous::Failure& first,
                            const std::vector<rendezvous::Failure>& others,
                            absl::TimeZone zone = absl::LocalTimeZone());

}  // namespace gradwire::tools
