#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/tools/launch/options/option_security.h"
#include "gradwire/tools/launch/options/option_values.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

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

// Fills in the defaults, and checks all options together.
absl::StatusOr<LaunchOptions> resolve_options(OptionDraft draft);

}  // namespace gradwire::tools
