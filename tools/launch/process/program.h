#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {

// What each worker executes.
struct Command {
  std::string path;               // for execve
  std::vector<std::string> argv;  // argv[0] included
  // Where in argv the worker's --local_rank=N is to stand; 0: nowhere.
  size_t local_rank_at = 0;

  // For the worker of that local rank.
  Command of(int local_rank) const;
};

// The file that a shell would run for `name`: the name itself if it has a slash, else the first executable of
// that name in `search_path` (as PATH). NotFound and PermissionDenied name the path.
absl::StatusOr<std::string> find_executable(const std::string& name, const std::string& search_path);

// A module (--module), a program whose name ends in .py unless --no_python, and anything with --run_path are
// run by `python` (looked up like any program) without output buffering; everything else is executed as it
// is.
absl::StatusOr<Command> resolve_command(const LaunchOptions& options, const std::string& search_path,
                                        const std::string& python);

}  // namespace gradwire::tools
