#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::store {

// Class of a failed call to etcd: whether the caller may repeat it, and whether it may have been executed.
enum class EtcdFailure {
  // This member failed. Another member, or this one a little later, may succeed. The call may have been
  // executed.
  kMember,
  // As kMember, but the call has not been executed.
  kRefused,
  // The token is not valid, or not valid any more. The call has not been executed.
  kToken,
  // The deadline has passed. The call may have been executed.
  kDeadline,
  // Repeating the call is useless. The call has not been executed.
  kFinal,
};

EtcdFailure classify_etcd(const grpc::Status& status);

// Converts the failure to an absl::Status. If the user can repair the cause, the message says how. Codes as
// in base/error.h; in addition NotFound: the lease does not exist any more; OutOfRange: the revision has been
// compacted, or does not exist yet. `address` is the address of the member. `user` is empty if the store has
// none.
absl::Status explain_etcd(const grpc::Status& status, absl::string_view address, absl::string_view user,
                          absl::string_view prefix);

// The error for a server that does not follow etcd's API.
absl::Status not_etcd(absl::string_view address, absl::string_view why);

}  // namespace gradwire::store
