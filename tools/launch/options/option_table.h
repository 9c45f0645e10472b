#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gradwire/tools/launch/options/option_values.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

// The options as given so far; defaults may depend on other options.
struct OptionDraft {
  const LaunchHostInfo* host_info = nullptr;

  // Options that are final as soon as they are given.
  LaunchOptions options;

  std::optional<int> workers;  // --nproc_per_node
  bool nodes_given = false;
  std::vector<RoleCount> roles;
  std::optional<RendezvousBackend> backend;
  std::vector<store::Endpoint> endpoints;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

struct OptionRow {
  enum class Value {
    kNone,      // --standalone
    kOptional,  // --use_env, --use_env=false
    kWanted,    // --role=x, --role x
  };

  absl::string_view name;
  char letter;  // 0: none
  Value value;
  absl::string_view value_name;  // how --help calls the value
  absl::string_view help;
  // The option says where the nodes are and how they meet: --standalone, which stands before it in the table,
  // says all of that, and then the environment is ignored.
  bool places_nodes;
  // A flag's value is "" where it was given without one.
  absl::Status (*apply)(OptionDraft& draft, absl::string_view value);
};

absl::Span<const OptionRow> option_table();

// The row of a name in either spelling or of a torchrun name for the same, or nullptr.
const OptionRow* find_option(absl::string_view name);
const OptionRow* find_option(char letter);

// Why an option of torchrun is not there and what to do instead; empty for a name that nobody knows.
absl::string_view option_elsewhere(absl::string_view name);

// Fills in what was not said, and checks all of it together.
absl::StatusOr<LaunchOptions> resolve_options(OptionDraft draft);

}  // namespace gradwire::tools
