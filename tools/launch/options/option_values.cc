#include "gradwire/tools/launch/options/option_values.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"
#include "gradwire/base/name.h"

namespace gradwire::tools {
namespace {

absl::Status parse_host_port(absl::string_view text, store::Endpoint& endpoint) {
  if (absl::StrContains(text, '/')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not HOST:PORT (write it without a scheme or path)"));
  }
  const bool in_brackets = absl::StartsWith(text, "[");
  // Text with more than one colon is an IPv6 address without a port.
  const bool has_port =
      in_brackets ? !absl::EndsWith(text, "]") : std::count(text.begin(), text.end(), ':') == 1;
  if (has_port) {
    GRADWIRE_ASSIGN_OR_RETURN(endpoint, store::parse_endpoint(text));
    return absl::OkStatus();
  }
  endpoint.port = kNoPort;
  const absl::Status status = parse_name(in_brackets ? text.substr(1, text.size() - 2) : text, endpoint.host);
  return with_context(status, absl::StrCat("\"", text, "\""));
}

// The name must leave room for a number, because workers are named by their role and a number.
absl::Status parse_role_name(absl::string_view text, std::string& name) {
  constexpr std::size_t kDigits = 10;
  GRADWIRE_RETURN_IF_ERROR(check_name("role", text, kMaxNameLength - kDigits));
  name = std::string(text);
  return absl::OkStatus();
}

}  // namespace

absl::Status parse_int(absl::string_view text, int low, int high, int& value) {
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", text, "\", expected a number"));
  }
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat("got ", text, ", expected ", low, "..", high));
  }
  return absl::OkStatus();
}

absl::Status parse_seconds(absl::string_view text, absl::Duration& value) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds <= 1e9)) {
    return absl::InvalidArgumentError(absl::StrCat("got \"", text, "\", expected a number of seconds"));
  }
  value = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status parse_bool(absl::string_view text, bool& value) {
  const std::string lower = absl::AsciiStrToLower(text);
  value = lower == "true" || lower == "yes" || lower == "on" || lower == "1";
  if (value || lower == "false" || lower == "no" || lower == "off" || lower == "0") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is neither true nor false"));
}

absl::Status parse_name(absl::string_view text, std::string& value) {
  if (text.empty() || text.size() > 255 || absl::StrContains(text, '\n')) {
    return absl::InvalidArgumentError("expected a name of 1..255 characters on one line");
  }
  value = std::string(text);
  return absl::OkStatus();
}

absl::Status parse_run_id(absl::string_view text, std::string& value) {
  if (text.empty() || text.size() > 128 || text == "." || text == ".." || absl::StrContains(text, '/') ||
      absl::StrContains(text, '\n')) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" cannot be used as an id: it is not a valid name of a directory"));
  }
  value = std::string(text);
  return absl::OkStatus();
}

absl::Status parse_nodes(absl::string_view text, int& min_nodes, int& max_nodes) {
  const std::vector<absl::string_view> range = absl::StrSplit(text, ':');
  if (range.size() > 2) return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not N or MIN:MAX"));
  GRADWIRE_RETURN_IF_ERROR(parse_int(range.front(), 1, kMaxNodes, min_nodes));
  GRADWIRE_RETURN_IF_ERROR(parse_int(range.back(), 1, kMaxNodes, max_nodes));
  if (min_nodes > max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": MIN is larger than MAX"));
  }
  return absl::OkStatus();
}

absl::Status parse_ranks(absl::string_view text, std::set<int>& ranks) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int rank = 0;
    GRADWIRE_RETURN_IF_ERROR(parse_int(absl::StripAsciiWhitespace(part), 0, kMaxWorkersPerNode - 1, rank));
    ranks.insert(rank);
  }
  return absl::OkStatus();
}

absl::Status parse_roles(absl::string_view text, std::vector<RoleCount>& roles) {
  if (!absl::StrContains(text, ':')) {
    roles.emplace_back();
    return parse_role_name(text, roles.back().name);
  }
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    if (pair.size() != 2) return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not NAME:COUNT"));
    RoleCount role;
    GRADWIRE_RETURN_IF_ERROR(parse_role_name(pair[0], role.name));
    GRADWIRE_RETURN_IF_ERROR(
        with_context(parse_int(pair[1], 1, kMaxWorkersPerNode, role.count), absl::StrCat("\"", part, "\"")));
    roles.push_back(std::move(role));
  }
  return absl::OkStatus();
}

absl::Status parse_host_ports(absl::string_view text, std::vector<store::Endpoint>& endpoints) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    endpoints.emplace_back();
    GRADWIRE_RETURN_IF_ERROR(parse_host_port(absl::StripAsciiWhitespace(part), endpoints.back()));
  }
  return absl::OkStatus();
}

}  // namespace gradwire::tools
