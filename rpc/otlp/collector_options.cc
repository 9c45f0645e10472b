#include "gradwire/rpc/otlp/collector_options.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"
#include "gradwire/base/process/host.h"
#include "gradwire/base/text/utf8.h"
#include "gradwire/security/checked_file.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::rpc {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr char kDefaultEndpoint[] = "http://127.0.0.1:4317";
constexpr int kDefaultPort = 4317;
constexpr absl::Duration kDefaultTime = absl::Seconds(10);
constexpr absl::Duration kShortestTime = absl::Milliseconds(10);
constexpr absl::Duration kLongestTime = absl::Hours(1);
// Far more than a collector needs. All of it is sent with every export.
constexpr std::size_t kMostPairs = 64;
constexpr std::size_t kLongestName = 255;
constexpr std::size_t kLongestValue = 4'096;

constexpr security::FileKind kHeadersFile = {.what = "file with headers",
                                             .option = "OtlpOptions::headers_file",
                                             .rule = security::FileKind::Rule::kSecret,
                                             .most = std::size_t{64} << 10};
constexpr security::FileKind kAuthorityFile = {
    .what = "file of certificates",
    .option = "OtlpOptions::certificate_file or OTEL_EXPORTER_OTLP_CERTIFICATE",
    .rule = security::FileKind::Rule::kTrusted,
    .most = std::size_t{1} << 20};

bool is_utf8(absl::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    if (!character.valid) return false;
    text.remove_prefix(character.size);
  }
  return true;
}

// Replaces "%2C" and the like. False if the two digits are missing.
bool decode(absl::string_view text, std::string& out) {
  out.clear();
  while (!text.empty()) {
    if (text[0] != '%') {
      out += text[0];
      text.remove_prefix(1);
      continue;
    }
    if (text.size() < 3 || !absl::ascii_isxdigit(text[1]) || !absl::ascii_isxdigit(text[2])) return false;
    absl::StrAppend(&out, absl::HexStringToBytes(text.substr(1, 2)));
    text.remove_prefix(3);
  }
  return true;
}

// Parses NAME=VALUE pairs between separators. Values may be secret, so no message has them.
absl::StatusOr<Pairs> parse_pairs(absl::string_view text, absl::string_view separators,
                                  absl::string_view source) {
  Pairs pairs;
  int number = 0;
  for (absl::string_view part : absl::StrSplit(text, absl::ByAnyChar(separators))) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;
    ++number;
    const std::size_t equals = part.find('=');
    const absl::string_view name =
        equals == absl::string_view::npos ? "" : absl::StripAsciiWhitespace(part.substr(0, equals));
    std::string value;
    if (name.empty() || name.size() > kLongestName || !is_utf8(name) ||
        !decode(absl::StripAsciiWhitespace(part.substr(equals + 1)), value) || value.size() > kLongestValue ||
        !is_utf8(value)) {
      security::wipe(value);
      return absl::InvalidArgumentError(absl::StrCat(
          "malformed entry ", number, " in ", source, ": expected NAME=VALUE in UTF-8, with at most ",
          kLongestName, " and ", kLongestValue, " bytes, and %XX for other bytes"));
    }
    if (pairs.size() == kMostPairs) {
      return absl::InvalidArgumentError(
          absl::StrCat("too many entries in ", source, ": expected at most ", kMostPairs));
    }
    pairs.emplace_back(name, std::move(value));
  }
  return pairs;
}

// gRPC ends the process when it gets a header that HTTP/2 does not allow.
absl::Status check_header(absl::string_view name, absl::string_view value, absl::string_view source) {
  const bool name_ok = std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  });
  if (!name_ok || absl::StartsWith(name, "grpc-") || absl::EndsWith(name, "-bin")) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid name of a header in ", source, ": got \"", name,
                     "\", expected letters, digits, '-', '_' and '.', without \"grpc-\" at the beginning and "
                     "\"-bin\" at the end"));
  }
  if (!std::all_of(value.begin(), value.end(), [](char c) { return absl::ascii_isprint(c); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("invalid value of the header \"", name, "\" in ", source, ": expected printable ASCII"));
  }
  return absl::OkStatus();
}

absl::Status read_headers(const std::string& file, const EnvironmentReader& environment,
                          CollectorOptions& out) {
  std::string source = "OTEL_EXPORTER_OTLP_HEADERS";
  security::Secret text;
  if (file.empty()) {
    std::string value = environment(source.c_str());
    text = security::Secret::take(value);
  } else {
    source = file;
    GRADWIRE_ASSIGN_OR_RETURN(security::CheckedFile checked, security::read_checked_file(kHeadersFile, file));
    text = std::move(checked.content);
  }
  GRADWIRE_ASSIGN_OR_RETURN(Pairs pairs, parse_pairs(text.reveal(), file.empty() ? "," : "\n", source));
  for (auto& [name, value] : pairs) {
    absl::AsciiStrToLower(&name);
    GRADWIRE_RETURN_IF_ERROR(check_header(name, value, source));
    out.headers.emplace_back(name, security::Secret::take(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> time_of(const std::optional<absl::Duration>& option, const char* what,
                                       const char* variable, const EnvironmentReader& environment) {
  absl::Duration time = option.value_or(kDefaultTime);
  if (const std::string text = option.has_value() ? "" : environment(variable); !text.empty()) {
    int64_t milliseconds = 0;
    if (!absl::SimpleAtoi(text, &milliseconds)) {
      return absl::InvalidArgumentError(
          absl::StrCat(variable, ": got \"", text, "\", expected a number of milliseconds"));
    }
    time = absl::Milliseconds(milliseconds);
  }
  if (time < kShortestTime || time > kLongestTime) {
    return absl::InvalidArgumentError(absl::StrCat(
        "OtlpOptions::", what, " (", variable, "): got ", absl::FormatDuration(time), ", expected ",
        absl::FormatDuration(kShortestTime), " to ", absl::FormatDuration(kLongestTime)));
  }
  return time;
}

bool is_insecure(const OtlpOptions& options, const EnvironmentReader& environment) {
  return options.insecure || absl::EqualsIgnoreCase(environment("OTEL_EXPORTER_OTLP_INSECURE"), "true");
}

absl::Status read_endpoint(const OtlpOptions& options, const EnvironmentReader& environment,
                           CollectorOptions& out) {
  std::string endpoint =
      options.endpoint.empty() ? environment("OTEL_EXPORTER_OTLP_ENDPOINT") : options.endpoint;
  if (endpoint.empty()) endpoint = kDefaultEndpoint;
  absl::string_view rest = endpoint;
  out.tls = absl::ConsumePrefix(&rest, "https://");
  const bool has_scheme = out.tls || absl::ConsumePrefix(&rest, "http://");
  absl::ConsumeSuffix(&rest, "/");
  // The port may be left out. The last colon of an IPv6 address is inside brackets.
  std::string with_port(rest);
  const std::size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || absl::EndsWith(rest, "]"))
    absl::StrAppend(&with_port, ":", kDefaultPort);
  const absl::StatusOr<store::Endpoint> parsed = store::parse_endpoint(with_port);
  if (!has_scheme || absl::StrContains(endpoint, "@") || !parsed.ok() ||
      !store::check_endpoint(*parsed, 1).ok()) {
    // A name and a password before '@' would be secret.
    return absl::InvalidArgumentError(absl::StrCat(
        "malformed endpoint of an OpenTelemetry collector: got ",
        absl::StrContains(endpoint, "@") ? "a text with '@'" : absl::StrCat("\"", endpoint, "\""),
        ", expected \"https://HOST:PORT\" or \"http://HOST:PORT\", without a path: OTLP is sent by gRPC"));
  }
  out.address = store::to_string(*parsed);
  if (!out.tls && !is_insecure(options, environment) && !store::is_loopback(parsed->host)) {
    return absl::FailedPreconditionError(
        absl::StrCat("export of metrics to ", endpoint,
                     " refused: it would cross the network without TLS; use https://, or allow it with "
                     "OtlpOptions::insecure or OTEL_EXPORTER_OTLP_INSECURE=true"));
  }
  return absl::OkStatus();
}

absl::Status read_authorities(const OtlpOptions& options, const EnvironmentReader& environment,
                              CollectorOptions& out) {
  if (!out.tls && !options.certificate_file.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("OtlpOptions::certificate_file is set, but the endpoint ",
                                                   out.address, " is without TLS; use https://"));
  }
  // The variable may be meant for other exporters of the program.
  if (!out.tls) return absl::OkStatus();
  const std::string path = options.certificate_file.empty() ? environment("OTEL_EXPORTER_OTLP_CERTIFICATE")
                                                            : options.certificate_file;
  if (path.empty()) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const security::CheckedFile file,
                            security::read_checked_file(kAuthorityFile, path));
  out.authorities = std::string(file.content.reveal());
  if (out.authorities.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("file of certificates ", path, ": it is empty; expected certificates in PEM"));
  }
  return absl::OkStatus();
}

absl::Status read_attributes(const OtlpOptions& options, const EnvironmentReader& environment,
                             CollectorOptions& out) {
  constexpr char kServiceName[] = "service.name";
  const std::string text = environment("OTEL_RESOURCE_ATTRIBUTES");
  GRADWIRE_ASSIGN_OR_RETURN(const Pairs pairs, parse_pairs(text, ",", "OTEL_RESOURCE_ATTRIBUTES"));
  out.attributes = {pairs.begin(), pairs.end()};
  if (const std::string name = environment("OTEL_SERVICE_NAME"); !name.empty())
    out.attributes[kServiceName] = name;
  for (const auto& [name, value] : options.attributes) out.attributes[name] = value;
  if (!options.service_name.empty()) out.attributes[kServiceName] = options.service_name;
  if (out.attributes.count(kServiceName) == 0) {
    const std::string job = environment("TORCHELASTIC_RUN_ID");
    out.attributes[kServiceName] = job.empty() ? "gradwire" : job;
  }
  out.attributes.emplace("host.name", host_name());
  for (const auto& [name, value] : out.attributes) {
    if (name.empty() || name.size() > kLongestName || value.size() > kLongestValue || !is_utf8(name) ||
        !is_utf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("invalid attribute \"", name, "\": its name must have 1 to ", kLongestName,
                       " bytes, and its value at most ", kLongestValue, ", both in UTF-8"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string read_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

absl::StatusOr<CollectorOptions> resolve(const OtlpOptions& options, const EnvironmentReader& environment) {
  CollectorOptions out;
  GRADWIRE_RETURN_IF_ERROR(read_endpoint(options, environment, out));
  GRADWIRE_RETURN_IF_ERROR(read_authorities(options, environment, out));
  GRADWIRE_RETURN_IF_ERROR(read_headers(options.headers_file, environment, out));
  if (!out.tls && !out.headers.empty() && !is_insecure(options, environment)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "export of metrics to ", out.address,
        " with headers refused: without TLS, every user of this host who "
        "listens there would get the keys in them; use https://, or allow it with OtlpOptions::insecure or "
        "OTEL_EXPORTER_OTLP_INSECURE=true"));
  }
  GRADWIRE_RETURN_IF_ERROR(read_attributes(options, environment, out));
  GRADWIRE_ASSIGN_OR_RETURN(
      out.interval, time_of(options.interval, "interval", "OTEL_METRIC_EXPORT_INTERVAL", environment));
  GRADWIRE_ASSIGN_OR_RETURN(out.timeout,
                            time_of(options.timeout, "timeout", "OTEL_EXPORTER_OTLP_TIMEOUT", environment));
  return out;
}

}  // namespace gradwire::rpc
