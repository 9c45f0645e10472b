#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"

namespace gradwire::tools {

// The folders in which the launchers of this user describe their running jobs. Only this user can enter them.
struct RuntimeFolders {
  // In the order in which a launcher tries them. Empty if the user wants none.
  std::vector<std::string> paths;
  // Whether GRADWIRE_RUNTIME_DIR names the folder.
  bool chosen = false;

  // The value of an environment variable; nullopt if it is not set or empty.
  using Variable = std::function<std::optional<std::string>(const char* name)>;

  //   GRADWIRE_RUNTIME_DIR   this folder and no other one; "none": no folder
  //   XDG_RUNTIME_DIR        "gradwire" in it; if it is not set, in /run/user/UID
  //   -                      /tmp/gradwire-UID
  static RuntimeFolders of(const Variable& variable);
};

// Opens a folder that belongs to this user, and that no other user can read, change or enter. With `create`
// it is made if it is missing, in a folder that must exist. PermissionDenied, with the remedy, if it belongs
// to another user, or if others have rights. NotFound, or Unavailable, if it cannot be opened or made.
absl::StatusOr<Descriptor> open_private_folder(std::string path, bool create);

}  // namespace gradwire::tools
