#include "gradwire/store/init/init_url.h"

#include <arpa/inet.h>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"

namespace gradwire::store {
namespace {

absl::Status invalid(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "init method \"", absl::CHexEscape(text.substr(0, 300)), "\": ", why,
      "; the forms are env://, tcp://host:port, tcp://multicast-address:port and file:///dir/name"));
}

bool is_multicast(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 28) == 0xe;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &v6) == 1) return v6.s6_addr[0] == 0xff;
  return false;
}

absl::Status parse_query(absl::string_view text, absl::string_view query, InitUrl& url) {
  for (absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    int number = 0;
    if (field.first != "rank" && field.first != "world_size") {
      return invalid(text, absl::StrCat("unknown parameter \"", absl::CHexEscape(field.first), "\""));
    }
    if (!absl::SimpleAtoi(field.second, &number) || number < 0) {
      return invalid(text, absl::StrCat(field.first, " is not a number of 0 or more"));
    }
    (field.first == "rank" ? url.rank : url.world_size) = number;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InitUrl> parse_init_url(absl::string_view text) {
  InitUrl url;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "file://")) {
    url.kind = InitUrl::Kind::kFile;
  } else if (absl::ConsumePrefix(&rest, "tcp://")) {
    url.kind = InitUrl::Kind::kTcp;
  } else if (!absl::ConsumePrefix(&rest, "env://")) {
    return invalid(text, "unknown scheme");
  }
  if (const std::size_t question = rest.rfind('?'); question != absl::string_view::npos) {
    GRADWIRE_RETURN_IF_ERROR(parse_query(text, rest.substr(question + 1), url));
    rest = rest.substr(0, question);
  }
  if (url.kind == InitUrl::Kind::kFile) {
    // In file://relative the first part of the path would be a host.
    if (rest.empty() || rest.front() != '/' || rest.back() == '/') {
      return invalid(text, "it needs the absolute path of a file, as in file:///dir/name");
    }
    url.path = std::string(rest);
    return url;
  }
  absl::ConsumeSuffix(&rest, "/");
  if (url.kind == InitUrl::Kind::kEnv) {
    if (!rest.empty()) return invalid(text, "env:// must not have an address");
    return url;
  }
  absl::StatusOr<Endpoint> endpoint = parse_endpoint(rest);
  if (!endpoint.ok()) return invalid(text, endpoint.status().message());
  url.endpoint = *std::move(endpoint);
  if (url.endpoint.port == 0) return invalid(text, "port must be 1 to 65535, got 0");
  if (is_multicast(url.endpoint.host)) url.kind = InitUrl::Kind::kMulticast;
  return url;
}

}  // namespace gradwire::store
