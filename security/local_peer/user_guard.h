#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/clock.h"
#include "gradwire/security/warning_limit.h"

namespace gradwire::security {

// Decides which users of this host a process accepts as peers: its own user, and those of a list. Logs
// refusals. Not thread-safe. `clock` must outlive this object.
//
// In a user namespace the kernel names every user that has no number there by the same number, 65534. Such a
// list must not contain it.
class UserGuard {
 public:
  explicit UserGuard(std::vector<uid_t> allowed_users, Clock& clock = Clock::system())
      : allowed_users_(std::move(allowed_users)), clock_(clock) {}

  bool allows(uid_t user) const;
  // Returns OK if the user is allowed, else PermissionDenied with both users and the remedy. Logs a warning
  // that `what` was refused, for example "a connection through shared memory": at most one per user and
  // minute.
  absl::Status check(uid_t user, absl::string_view what);

 private:
  const std::vector<uid_t> allowed_users_;
  Clock& clock_;
  WarningLimit warnings_;
};

}  // namespace gradwire::security
