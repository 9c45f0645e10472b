#include "gradwire/transport/http/http_host.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace gradwire::transport {

std::string host_of_header(absl::string_view header) {
  const std::size_t from = absl::StartsWith(header, "[") ? header.find(']') : 0;
  if (from == absl::string_view::npos) return std::string();
  return absl::AsciiStrToLower(header.substr(0, header.find(':', from)));
}

bool is_address_or_localhost(absl::string_view host) {
  if (absl::StartsWith(host, "[")) return true;
  return host == "localhost" || (!host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
           return absl::ascii_isdigit(c) || c == '.';
         }));
}

bool is_loopback_host(absl::string_view host) {
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") && is_address_or_localhost(host));
}

}  // namespace gradwire::transport
