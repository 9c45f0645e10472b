#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/launch/layout.h"
#include "tools/launch/supervisor.h"

namespace gradwire::tools {

// The values that launchers leave in the store for one another. What is read comes from another process:
// lengths and numbers are checked, and control characters do not reach a terminal. InvalidArgument for what
// is not such a value.

struct NodeRecord {
  NodeEntry node;
  std::string run_id;
};

std::string encode_node(const NodeRecord& record);
absl::StatusOr<NodeRecord> decode_node(absl::string_view value);

std::string encode_failure(const Failure& failure);
absl::StatusOr<Failure> decode_failure(absl::string_view value);

}  // namespace gradwire::tools
