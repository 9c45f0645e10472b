#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/tools/launch/options/option_values.h"
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

// The options given so far. Defaults are resolved later, because they may depend on other options.
struct OptionDraft {
  const LaunchHostInfo* host_info = nullptr;

  // Options that need no resolution.
  LaunchOptions options;

  std::optional<int> workers;  // --nproc_per_node
  bool nodes_given = false;
  std::vector<RoleCount> roles;
  std::optional<RendezvousBackend> backend;
  std::vector<store::Endpoint> endpoints;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  SecurityDraft security;
};

// One option of the command line.
struct OptionRow {
  enum class Value {
    kNone,      // --standalone
    kOptional,  // --use_env, --use_env=false
    kWanted,    // --role=x, --role x
  };

  absl::string_view name;
  char letter;  // 0 without a short form.
  Value value;
  absl::string_view value_name;  // Name of the value in --help.
  absl::string_view help;
  // Whether the option is about the nodes and their rendezvous. With --standalone, which is before it in the
  // table, its environment variable is ignored.
  bool places_nodes;
  // Applies the option. `value` is "" for a flag that was given without a value.
  absl::Status (*apply)(OptionDraft& draft, absl::string_view value);
};

absl::Span<const OptionRow> option_table();

// Returns the row of an option, by its name in either spelling, by torchrun's name for it, or by its letter;
// or nullptr.
const OptionRow* find_option(absl::string_view name);
const OptionRow* find_option(char letter);

// Returns what to use instead of an option that only torchrun has; empty for any other name.
absl::string_view replacement_of_option(absl::string_view name);

}  // namespace gradwire::tools
