#include "gradwire/store/c10d/c10d_admission.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/security/local_peer/tcp_peer_user.h"

namespace gradwire::store {

C10dAdmission::C10dAdmission(Options options, Clock& clock)
    : mode_(options.mode), users_(std::move(options.allowed_users), clock), clock_(clock) {}

absl::Status C10dAdmission::check_in_loop(int socket, const std::string& address) {
  if (mode_ == Mode::kEveryone) return absl::OkStatus();
  const absl::Status status = check_user(socket);
  if (status.ok()) return status;
  const absl::Status refusal(
      status.code(),
      absl::StrCat(
          "a client of PyTorch's TCPStore at ", address, " cannot prove that it belongs to the job: ",
          status.message(), "; run it on this host as user ", ::geteuid(),
          ", or set TcpStoreOptions::allow_unauthenticated_pytorch if every process on the network is "
          "trusted"));
  const absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (warnings_.allows(host, clock_.now()))
    log(LogLevel::kWarning, "the store refused a connection: ", refusal.message());
  return refusal;
}

absl::Status C10dAdmission::check_user(int socket) const {
  GRADWIRE_ASSIGN_OR_RETURN(const uid_t user, security::tcp_peer_user(socket));
  if (users_.allows(user)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("it belongs to user ", user, " (SecurityOptions::allowed_users has the allowed ones)"));
}

}  // namespace gradwire::store
