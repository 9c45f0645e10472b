#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/secret.h"

namespace gradwire::security {

// Creates a file with mode 0600 and this content. `what` names the kind of file in messages, for example
// "token file". AlreadyExists if there is a file, or a link, with this name; Unavailable for other failures,
// after which there is no such file.
absl::Status create_private_file(absl::string_view what, const std::string& path, const Secret& content);

}  // namespace gradwire::security
