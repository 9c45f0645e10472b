#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/rpc/otlp/otlp_options.h"
#include "gradwire/security/secret.h"

namespace gradwire::rpc {

// The checked form of OtlpOptions, with the environment and the contents of the files.
struct CollectorOptions {
  // "host:4317". For gRPC and for messages.
  std::string address;
  bool tls = false;
  // The certificates of authorities (PEM); empty: those of the system.
  std::string authorities;
  // Names in lower case. gRPC accepts these names and values.
  std::vector<std::pair<std::string, security::Secret>> headers;
  absl::Duration interval;
  absl::Duration timeout;
  // The attributes of the sender. Valid UTF-8.
  std::map<std::string, std::string> attributes;
};

// Returns the value of a variable of the environment; empty if it is not set.
using EnvironmentReader = std::function<std::string(const char* name)>;
// Reads the environment of the process.
std::string read_environment(const char* name);

// Checks the options and reads the files. Errors: InvalidArgument for a malformed value, without the values
// of headers; FailedPrecondition for a host that needs TLS or consent; those of read_checked_file()
// (security/checked_file.h).
absl::StatusOr<CollectorOptions> resolve(const OtlpOptions& options,
                                         const EnvironmentReader& environment = read_environment);

}  // namespace gradwire::rpc
