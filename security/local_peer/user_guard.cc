#include "gradwire/security/local_peer/user_guard.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gradwire/base/log/log.h"

namespace gradwire::security {

bool UserGuard::allows(uid_t user) const {
  return user == ::geteuid() ||
         std::find(allowed_users_.begin(), allowed_users_.end(), user) != allowed_users_.end();
}

absl::Status UserGuard::check(uid_t user, absl::string_view what) {
  if (allows(user)) return absl::OkStatus();
  const std::string why =
      absl::StrCat("the peer process belongs to user ", user, ", expected user ", ::geteuid(),
                   "; to allow that user, add it to SecurityOptions::allowed_users");
  if (warnings_.allows(absl::StrCat(user), clock_.now()))
    log(LogLevel::kWarning, "refused ", what, ": ", why);
  return absl::PermissionDeniedError(why);
}

}  // namespace gradwire::security
