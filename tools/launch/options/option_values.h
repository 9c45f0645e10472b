#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/store/calls/endpoint.h"
#include "gradwire/tools/launch/options/layout.h"

namespace gradwire::tools {

// Parsers for the kinds of values of options. Each parses `text` into the other argument. For malformed text
// the other argument may have any value, and the error is InvalidArgument, with a message that fits after the
// name of the option.

inline constexpr int kMaxWorkersPerNode = 4096;
inline constexpr int kMaxNodes = 65536;

absl::Status parse_int(absl::string_view text, int low, int high, int& value);
// A number of seconds from 0 to 1e9, with or without a fraction.
absl::Status parse_seconds(absl::string_view text, absl::Duration& value);
// Accepts true, yes, on, 1 and false, no, off, 0, in upper or lower case.
absl::Status parse_bool(absl::string_view text, bool& value);
// A name of 1..255 characters on one line.
absl::Status parse_name(absl::string_view text, std::string& value);
// An id that can name a directory.
absl::Status parse_run_id(absl::string_view text, std::string& value);
// "4" or "1:4".
absl::Status parse_nodes(absl::string_view text, int& min_nodes, int& max_nodes);
// "0,2".
absl::Status parse_ranks(absl::string_view text, std::set<int>& ranks);

// "trainer" (count 0) or "server:1,trainer:4"; adds to `roles`.
absl::Status parse_roles(absl::string_view text, std::vector<RoleCount>& roles);

// "HOST[:PORT],..."; an IPv6 address with a port is in brackets. A missing port becomes kNoPort.
inline constexpr int kNoPort = -1;
absl::Status parse_host_ports(absl::string_view text, std::vector<store::Endpoint>& endpoints);

}  // namespace gradwire::tools
