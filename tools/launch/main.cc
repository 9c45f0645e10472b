// The launcher: starts the workers of a job on this machine, like torchrun, but for any program.
// docs/launch.md is the guide.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/log_level.h"
#include "gradwire/base/process/users_directory.h"
#include "gradwire/base/version.h"
#include "gradwire/security/token/token_file.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/io/launcher_lines.h"
#include "gradwire/tools/launch/job/job.h"
#include "gradwire/tools/launch/options/options.h"

namespace gradwire::tools {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongCommandLine = 2;

// Opens /dev/null for missing standard descriptors, so that descriptors opened later do not take their
// numbers.
void fill_standard_descriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

int fail(const absl::Status& status) {
  write_all(STDERR_FILENO, launcher_line(status.message(), LogLevel::kError));
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
      return kWrongCommandLine;
    default:
      return kFailed;
  }
}

// The variables hold for the launcher itself, and the workers inherit them. The log of this process reads
// them at its first line.
void export_log_options(const LaunchOptions& options) {
  if (!options.log_level.empty()) setenv("GRADWIRE_LOG_LEVEL", options.log_level.c_str(), 1);
  if (!options.log_format.empty()) setenv("GRADWIRE_LOG_FORMAT", options.log_format.c_str(), 1);
}

int launch(int argc, char** argv) {
  fill_standard_descriptors();
  absl::StatusOr<LaunchOptions> options =
      parse_launch_options(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
  if (!options.ok()) return fail(options.status());
  if (options->help) {
    write_all(STDOUT_FILENO, launch_usage());
    return 0;
  }
  if (options->version) {
    write_all(STDOUT_FILENO, absl::StrCat("gradwire ", kVersion, "\n"));
    return 0;
  }
  export_log_options(*options);
  return_to_users_directory();
  if (!options->make_token.empty()) {
    const absl::Status made = security::create_token_file(options->make_token, security::make_token());
    return made.ok() ? 0 : fail(made);
  }
  absl::StatusOr<std::unique_ptr<LaunchJob>> job = LaunchJob::create(*std::move(options));
  if (!job.ok()) return fail(job.status());
  absl::StatusOr<int> exit_code = (*job)->run();
  return exit_code.ok() ? *exit_code : fail(exit_code.status());
}

}  // namespace
}  // namespace gradwire::tools

int main(int argc, char** argv) { return gradwire::tools::launch(argc, argv); }
