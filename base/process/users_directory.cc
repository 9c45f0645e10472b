#include "gradwire/base/process/users_directory.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"

namespace gradwire {

void return_to_users_directory() {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  std::error_code error;
  const std::filesystem::path current = std::filesystem::current_path(error);
  // The variable is inherited. A program that one of Bazel's has started elsewhere keeps its directory.
  if (directory == nullptr || error || !absl::EndsWith(current.parent_path().string(), ".runfiles")) return;
  std::filesystem::current_path(directory, error);
}

}  // namespace gradwire
