#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradwire::rpc {

// The failure of one member of a mesh.
struct MemberFailure {
  std::string name;
  absl::Status status;
};

// One error for all failures of a call. It has the code of the first failure, and names the members that did
// not answer in time, and every other member with its own error. `action`: `the call of "f"`, for example.
// `timeout` is that of the call. OK without failures.
absl::Status failure_of_members(absl::string_view action, std::size_t members, absl::Duration timeout,
                                const std::vector<MemberFailure>& failures);

}  // namespace gradwire::rpc
