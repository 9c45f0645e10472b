#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

// The command that the workers execute.
struct Command {
  std::string path;               // For execve().
  std::vector<std::string> argv;  // Includes argv[0].
  // Index in argv where --local_rank=N is inserted; 0 if it is not passed.
  size_t local_rank_at = 0;

  // The command for the worker with that local rank.
  Command for_local_rank(int local_rank) const;
};

// Returns the file that a shell would run for `name`: the name itself if it has a slash, else the first
// executable of that name in `search_path` (in the format of PATH). NotFound and PermissionDenied name the
// path.
absl::StatusOr<std::string> find_executable(const std::string& name, const std::string& search_path);

// Returns the command for the workers. `python` (found like any program) runs, without output buffering, a
// module (--module), a program whose name ends in .py (unless --no_python), and any program with --run_path.
// Other programs are executed directly.
absl::StatusOr<Command> resolve_command(const LaunchOptions& options, const std::string& search_path,
                                        const std::string& python);

}  // namespace gradwire::tools
