// Reads the input as the launcher's arguments and environment (tools/launch/options/options.h), one for each
// line. A line "$NAME=VALUE" is a variable; every other line is an argument.

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gradwire/tests/fuzz/fuzzing.h"
#include "gradwire/tools/launch/options/options.h"

namespace {

using gradwire::fuzzing::require;
using gradwire::tools::LaunchHostInfo;
using gradwire::tools::LaunchOptions;
using gradwire::tools::RendezvousBackend;
using Arguments = std::vector<std::string>;

LaunchHostInfo host_info(const std::map<std::string, std::string>& variables) {
  return {.variable = [&variables](const std::string& name) -> std::optional<std::string> {
            const auto found = variables.find(name);
            if (found == variables.end() || found->second.empty()) return std::nullopt;
            return found->second;
          },
          .cores = 4,
          .visible_gpus = [] { return 2; }};
}

// The other spelling of the options' names: a dash for each underscore, up to the program or to "--". A value
// that follows its option may have been spelled differently too, so the result is only compared if no value
// can contain an underscore.
std::optional<Arguments> with_dashes(Arguments arguments) {
  for (std::string& argument : arguments) {
    const bool is_option = absl::StartsWith(argument, "--");
    const std::size_t end = is_option ? std::min(argument.find('='), argument.size()) : 0;
    std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
    if (argument.find('_', end) != std::string::npos) return std::nullopt;
    // From here on arguments may belong to the program.
    if (argument == "--" || argument.empty() || argument[0] != '-') break;
  }
  return arguments;
}

// The value of an option may be the name of another one, which with_dashes() changes as well.
bool spelled_alike(std::string one, std::string other) {
  std::replace(one.begin(), one.end(), '_', '-');
  std::replace(other.begin(), other.end(), '_', '-');
  return one == other;
}

// The promises of LaunchOptions.
void check(const LaunchOptions& options, const Arguments& arguments) {
  int workers = 0;
  for (const auto& role : options.roles) {
    require(role.count >= 1 && !role.name.empty(), "a role without workers or without a name");
    workers += role.count;
  }
  require(workers == options.nproc_per_node, "the counts of the roles do not add up to nproc_per_node");
  require(options.min_nodes >= 1 && options.min_nodes <= options.max_nodes, "an impossible number of nodes");
  require(options.max_restarts >= 0, "a negative number of restarts");
  require(options.grace_period >= absl::ZeroDuration(), "a negative time");
  require(options.trace_records >= 0 && options.trace_records <= 524'288, "a ring that is too large");
  if (options.elastic()) {
    require(!options.node_rank.has_value(), "an elastic job has a node rank");
    require(options.backend != RendezvousBackend::kStatic, "an elastic job has a static rendezvous");
  } else if (options.backend == RendezvousBackend::kStatic) {
    require(options.node_rank.has_value(), "no node rank");
  }
  if (options.node_rank) {
    require(*options.node_rank >= 0 && *options.node_rank < options.max_nodes, "a node rank out of range");
  }
  if (options.backend == RendezvousBackend::kEtcd) {
    require(!options.endpoints.empty(), "etcd without an address");
  } else {
    require(options.master_port >= 0 && options.master_port <= 65535, "a port out of range");
    require(options.master_port > 0 || options.max_nodes == 1, "several nodes with an unknown port");
    require(!options.master_addr.empty(), "no address");
  }
  require(!options.standalone || options.max_nodes == 1, "a standalone job with several nodes");
  // The program's arguments are passed on unchanged.
  require(!options.program.empty() && options.program_args.size() < arguments.size(), "no program");
  const std::size_t place = arguments.size() - options.program_args.size() - 1;
  require(arguments[place] == options.program, "another program");
  require(std::equal(options.program_args.begin(), options.program_args.end(),
                     arguments.begin() + static_cast<std::ptrdiff_t>(place) + 1),
          "the program's arguments were changed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  std::map<std::string, std::string> variables;
  Arguments arguments;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (std::string line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    // No argument and no variable of a process contains a NUL.
    line.erase(std::remove(line.begin(), line.end(), '\0'), line.end());
    const std::size_t equals = line.find('=');
    if (absl::StartsWith(line, "$") && equals != std::string::npos) {
      variables[line.substr(1, equals - 1)] = line.substr(equals + 1);
    } else {
      arguments.push_back(std::move(line));
    }
  }
  const LaunchHostInfo info = host_info(variables);
  const absl::StatusOr<LaunchOptions> options = gradwire::tools::parse_launch_options(arguments, info);
  if (!options.ok()) {
    require(absl::IsInvalidArgument(options.status()), "an error that is not InvalidArgument");
    require(!options.status().message().empty(), "an error without a message");
  } else if (!options->help && !options->version && options->make_token.empty()) {
    check(*options, arguments);
  }
  if (const std::optional<Arguments> dashes = with_dashes(arguments)) {
    const auto other = gradwire::tools::parse_launch_options(*dashes, info);
    require(other.ok() == options.ok(), "dashes and underscores differ");
    if (options.ok()) {
      require(other->nproc_per_node == options->nproc_per_node && other->max_nodes == options->max_nodes &&
                  other->backend == options->backend && other->program == options->program &&
                  spelled_alike(other->make_token, options->make_token),
              "dashes and underscores differ in a value");
    }
  }
  return 0;
}
