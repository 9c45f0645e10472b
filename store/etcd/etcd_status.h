#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::store {

// What a call to etcd that failed means for the one who called.
enum class EtcdFailure {
  // This member cannot do it now: another may, or this one a little later. It may have been done
  // nevertheless.
  kMember,
  // As kMember, and it has not been done.
  kRefused,
  // The token is not, or no longer, known. It has not been done.
  kToken,
  // The time was over. It may have been done nevertheless.
  kDeadline,
  // Asking again is of no use. It has not been done.
  kFinal,
};

EtcdFailure classify_etcd(const grpc::Status& status);

// The same as an absl::Status that says, where somebody can mend it, what to do. Codes as in base/error.h and
// besides NotFound: the lease is no more; OutOfRange: the revision has been compacted or has not come.
// `address` is the member's; an empty `user` means that the store has none.
absl::Status explain_etcd(const grpc::Status& status, absl::string_view address, absl::string_view user,
                          absl::string_view prefix);

// Somebody answers who does not keep to etcd's API.
absl::Status no_etcd(absl::string_view address, absl::string_view why);

}  // namespace gradwire::store
