#include "gradwire/store/etcd/etcd_status.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::store {
namespace {

// gRPC's own, where there was no connection to send the request over.
constexpr absl::string_view kNotSent = "failed to connect to all addresses";
// etcd tells many failures apart by these words alone (api/v3rpc/rpctypes of its sources).
constexpr absl::string_view kWrongPassword = "authentication failed, invalid user ID or password";
constexpr absl::string_view kNoUser = "user name is empty";
constexpr absl::string_view kOldToken = "revision of auth store is old";
constexpr absl::string_view kTooLarge = "request is too large";
// The gRPC that etcd is built with, before etcd has seen the request.
constexpr absl::string_view kFarTooLarge = "grpc: received message larger than max";
constexpr absl::string_view kTooMany = "too many requests";
constexpr absl::string_view kNoSpace = "database space exceeded";

bool says(const grpc::Status& status, absl::string_view words) {
  return absl::StrContains(status.error_message(), words);
}

// What a peer says goes into messages printable and bounded.
std::string quoted(absl::string_view text) {
  constexpr std::size_t kShown = 400;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "..." : "");
}

}  // namespace

EtcdFailure classify_etcd(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return says(status, kNotSent) ? EtcdFailure::kRefused : EtcdFailure::kMember;
    // How an etcd that is stopping ends what is under way.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      return EtcdFailure::kMember;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return EtcdFailure::kDeadline;
    case grpc::StatusCode::UNAUTHENTICATED:
      return EtcdFailure::kToken;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return says(status, kTooMany) ? EtcdFailure::kRefused : EtcdFailure::kFinal;
    default:
      return says(status, kOldToken) ? EtcdFailure::kToken : EtcdFailure::kFinal;
  }
}

absl::Status explain_etcd(const grpc::Status& status, absl::string_view address, absl::string_view user,
                          absl::string_view prefix) {
  const std::string answer = absl::StrCat("etcd at ", address, ": ", quoted(status.error_message()));
  const std::string who = user.empty() ? "no user" : absl::StrCat("user \"", quoted(user), "\"");
  if (says(status, kWrongPassword)) {
    return absl::UnauthenticatedError(
        absl::StrCat(answer, " (", who, "): check security.user and security.password"));
  }
  if (says(status, kNoUser)) {
    return absl::UnauthenticatedError(absl::StrCat(
        answer, " (", who, "): authentication is on there, so give security.user and security.password"));
  }
  if (says(status, kTooLarge) || says(status, kFarTooLarge)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        answer, ": it takes 1.5 MiB at a time unless started with a larger --max-request-bytes"));
  }
  if (says(status, kNoSpace)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(answer, ": compact and defragment it, or start it with a larger --quota-backend-bytes"));
  }
  switch (status.error_code()) {
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::PermissionDeniedError(absl::StrCat(
          answer, " (", who, "): grant it a role that may read and write all keys that begin with \"",
          quoted(prefix), "\" (etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX)"));
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::UnauthenticatedError(absl::StrCat(answer, " (", who, "): its tokens are not accepted"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return no_etcd(address, quoted(status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), answer);
  }
}

absl::Status no_etcd(absl::string_view address, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("what answers at ", address, " is no etcd v3: ", why));
}

}  // namespace gradwire::store
