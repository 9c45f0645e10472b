#include "tools/launch/nodes_wire.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::tools {
namespace {

constexpr size_t kMaxField = 1024;

// Fields are lines, so a field is one line.
std::string field(absl::string_view text) {
  std::string clean(text.substr(0, kMaxField));
  for (char& c : clean) {
    if (absl::ascii_iscntrl(c)) c = '?';
  }
  return clean;
}

std::vector<std::string> fields(absl::string_view value) {
  std::vector<std::string> result;
  for (absl::string_view line : absl::StrSplit(value.substr(0, 8 * kMaxField), '\n'))
    result.push_back(field(line));
  return result;
}

}  // namespace

std::string encode_node(const NodeRecord& record) {
  return absl::StrCat(field(record.node.host), "\n", field(record.node.role), "\n",
                      record.node.local_world_size, "\n", field(record.run_id));
}

absl::StatusOr<NodeRecord> decode_node(absl::string_view value) {
  const std::vector<std::string> parts = fields(value);
  NodeRecord record;
  constexpr int kMaxWorkers = 1 << 20;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &record.node.local_world_size) ||
      record.node.local_world_size < 1 || record.node.local_world_size > kMaxWorkers || parts[3].empty() ||
      absl::StrContains(parts[3], '/') || parts[3] == "." || parts[3] == "..") {
    return absl::InvalidArgumentError("what a node's launcher left in the store is not understood");
  }
  record.node.host = parts[0];
  record.node.role = parts[1];
  record.run_id = parts[3];
  return record;
}

std::string encode_failure(const Failure& failure) {
  return absl::StrCat(failure.exit_code, "\n", field(failure.description));
}

absl::StatusOr<Failure> decode_failure(absl::string_view value) {
  const std::vector<std::string> parts = fields(value);
  Failure failure;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &failure.exit_code) || failure.exit_code < 1 ||
      failure.exit_code > 255) {
    return absl::InvalidArgumentError(
        "the failure that a node's launcher left in the store is not understood");
  }
  failure.description = parts[1];
  return failure;
}

}  // namespace gradwire::tools
