#include "gradwire/store/tcp/endpoint.h"

#include <arpa/inet.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::store {

bool is_ipv4(absl::string_view host) {
  in_addr address;
  return inet_pton(AF_INET, std::string(host).c_str(), &address) == 1;
}

bool is_ipv6(absl::string_view host) {
  in6_addr address;
  return inet_pton(AF_INET6, std::string(host.substr(0, host.find('%'))).c_str(), &address) == 1;
}

bool is_loopback(absl::string_view host) {
  return absl::EqualsIgnoreCase(host, "localhost") || host == "::1" ||
         (is_ipv4(host) && absl::StartsWith(host, "127."));
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = absl::StrContains(endpoint.host, ':');
  return absl::StrCat(brackets ? "[" : "", endpoint.host, brackets ? "]:" : ":", endpoint.port);
}

absl::Status check_endpoint(const Endpoint& endpoint, int lowest_port) {
  bool plausible = !endpoint.host.empty() && endpoint.host.size() <= 255;
  if (absl::StrContains(endpoint.host, ':')) plausible = plausible && is_ipv6(endpoint.host);
  for (char c : endpoint.host)
    plausible = plausible && c > ' ' && c < 127 && c != '/' && c != '[' && c != ']';
  if (!plausible) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(endpoint.host.substr(0, 255)), "\" is no host name or address"));
  }
  if (endpoint.port < lowest_port || endpoint.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", endpoint.port, " of host ", endpoint.host,
                                                   " is not in ", lowest_port, "..65535"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Endpoint> parse_endpoint(absl::string_view text) {
  const std::size_t colon = text.rfind(':');
  Endpoint endpoint;
  bool valid = colon != absl::string_view::npos;
  if (valid) {
    absl::string_view host = text.substr(0, colon);
    const absl::string_view port = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
      valid = is_ipv6(host);
    } else {
      valid = !absl::StrContains(host, ':');
    }
    // SimpleAtoi would take signs and spaces.
    valid = valid && !port.empty() && port.find_first_not_of("0123456789") == absl::string_view::npos &&
            absl::SimpleAtoi(port, &endpoint.port);
    endpoint.host = std::string(host);
  }
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(text.substr(0, 300)),
                                                   "\" is not host:port ([address]:port for IPv6)"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_endpoint(endpoint, 0));
  return endpoint;
}

}  // namespace gradwire::store
