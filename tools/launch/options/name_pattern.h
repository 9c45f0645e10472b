#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::tools {

// Texts that differ from worker to worker, such as "worker{rank}" and "/keys/{role}{role_rank}.pem". The
// fields are {rank}, {local_rank}, {role} and {role_rank}.

// InvalidArgument, which names the field, if `pattern` has an unknown field or an unpaired brace.
absl::Status check_name_pattern(absl::string_view pattern);

// Whether `pattern` has one of the fields that differ between workers of one role.
bool has_rank_field(absl::string_view pattern);

// Fills in the fields. REQUIRES: check_name_pattern() accepts the pattern.
std::string expand_name_pattern(absl::string_view pattern, const WorkerPlace& place);

}  // namespace gradwire::tools
