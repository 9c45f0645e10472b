#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "gradwire/tools/launch/options/options.h"
#include "gradwire/tools/launch/options/security.h"

namespace gradwire::tools {

// The options of security that were given. An empty text or false: not given.
struct SecurityDraft {
  bool insecure = false;
  bool secure = false;
  std::string token_file;
  std::string certificate_file;
  std::string key_file;
  std::string authority_file;
  std::string worker_certificate_file;
  std::string worker_key_file;
  std::string worker_name;
  bool allow_unauthenticated_pytorch = false;
};

// Chooses how the job is protected: by the options, else by the GRADWIRE_ variables of the environment, else
// by what the job needs (see LaunchSecurity::Kind). `options` has all its other values. InvalidArgument, with
// the remedy, if the options contradict each other or do not suffice for a job on several hosts.
absl::StatusOr<LaunchSecurity> resolve_security(SecurityDraft draft, const Variables& variable,
                                                const LaunchOptions& options);

}  // namespace gradwire::tools
