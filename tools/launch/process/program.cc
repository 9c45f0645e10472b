#include "gradwire/tools/launch/process/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/error.h"

namespace gradwire::tools {
namespace {

// The code that --run_path executes. The program gets its arguments as if it had been started directly.
constexpr char kRunPath[] =
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

absl::Status check_exists(const std::string& path, struct stat& info) {
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(absl::StrCat("program not found: ", path));
  return absl::OkStatus();
}

absl::Status check_readable_file(const std::string& path) {
  struct stat info {};
  GRADWIRE_RETURN_IF_ERROR(check_exists(path, info));
  if (!S_ISREG(info.st_mode))
    return absl::PermissionDeniedError(absl::StrCat("program is not a file: ", path));
  return absl::OkStatus();
}

absl::Status check_executable(const std::string& path) {
  GRADWIRE_RETURN_IF_ERROR(check_readable_file(path));
  if (access(path.c_str(), X_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("program is not executable: ", path));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> find_executable(const std::string& name, const std::string& search_path) {
  if (absl::StrContains(name, '/')) {
    GRADWIRE_RETURN_IF_ERROR(check_executable(name));
    return name;
  }
  for (absl::string_view directory : absl::StrSplit(search_path, ':')) {
    std::string path = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    if (check_executable(path).ok()) return path;
  }
  const bool exists_here = check_readable_file(name).ok();
  return absl::NotFoundError(absl::StrCat(
      "program not found in PATH: ", name,
      exists_here ? absl::StrCat(" (for the file in the current directory use ./", name, ")") : ""));
}

Command Command::for_local_rank(int local_rank) const {
  Command command = *this;
  if (local_rank_at > 0) {
    command.argv.insert(command.argv.begin() + local_rank_at, absl::StrCat("--local_rank=", local_rank));
  }
  return command;
}

// The program is checked here and not by execve(), because a wrong path is then an error of the command
// line, before any worker has started. python3 runs with -u: buffered output is lost when a worker is
// killed.
absl::StatusOr<Command> resolve_command(const LaunchOptions& options, const std::string& search_path,
                                        const std::string& python) {
  Command command;
  const bool script = absl::EndsWith(options.program, ".py") && !options.no_python;
  if (options.module || options.run_path || script) {
    if (options.run_path) {
      // The program may also be a directory with a __main__.py.
      struct stat info {};
      GRADWIRE_RETURN_IF_ERROR(check_exists(options.program, info));
    } else if (!options.module) {
      GRADWIRE_RETURN_IF_ERROR(check_readable_file(options.program));
    }
    GRADWIRE_ASSIGN_OR_RETURN(command.path, find_executable(python, search_path));
    command.argv = {python, "-u"};
    if (options.module) command.argv.push_back("-m");
    if (options.run_path) command.argv.insert(command.argv.end(), {"-c", kRunPath});
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(command.path, find_executable(options.program, search_path));
  }
  command.argv.push_back(options.program);
  if (!options.use_env) command.local_rank_at = command.argv.size();
  command.argv.insert(command.argv.end(), options.program_args.begin(), options.program_args.end());
  return command;
}

}  // namespace gradwire::tools
