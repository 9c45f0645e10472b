#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/rpc/core/extension.h"

namespace gradwire::rpc {

// The number of the service ListCallees (proto/rpc.proto).
inline constexpr uint32_t kListCallees = 11;

// The bounds of one answer.
inline constexpr std::size_t kMaxListedCallees = 1024;
inline constexpr std::size_t kMaxListedBytes = std::size_t{256} << 10;

// Returns the answer to a ListCallees: a page of what this process serves. InvalidArgument for a malformed
// message.
absl::StatusOr<ServiceReply> serve_list_callees(const std::string& body);

}  // namespace gradwire::rpc
