#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/base/clock.h"
#include "gradwire/security/local_peer/user_guard.h"
#include "gradwire/security/warning_limit.h"

namespace gradwire::store {

// Decides which clients of PyTorch's TCPStore a server serves. Their protocol has no credentials, so they
// cannot prove that they belong to the job. If the server demands a proof, it can still serve those that the
// kernel vouches for: processes of this host that belong to the user of the job.
//
// Use only on the thread that drives the server's loop. `clock` must outlive this object.
class C10dAdmission {
 public:
  enum class Mode : uint8_t {
    // Every client is served.
    kEveryone,
    // A client is served if its connection does not leave this host, and its process belongs to the user of
    // this process or to an allowed user (security/local_peer/tcp_peer_user.h).
    kAllowedUsers,
  };
  struct Options {
    Mode mode = Mode::kEveryone;
    // The users beside that of this process.
    std::vector<uid_t> allowed_users = {};
  };
  explicit C10dAdmission(Options options, Clock& clock = Clock::system());

  // Returns OK if the client at the other end of `socket` is served, else PermissionDenied or Unavailable
  // with the reason and the remedy; then also logs a warning, at most one per host address and minute.
  // `address` is "host:port".
  absl::Status check_in_loop(int socket, const std::string& address);

 private:
  absl::Status check_user(int socket) const;

  const Mode mode_;
  const security::UserGuard users_;
  Clock& clock_;
  security::WarningLimit warnings_;
};

}  // namespace gradwire::store
