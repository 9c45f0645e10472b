#include "gradwire/store/etcd/etcd_status.h"

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace gradwire::store {
namespace {

// gRPC's text if the request could not be sent, because it had no connection.
constexpr absl::string_view kNotSent = "failed to connect to all addresses";
// Texts of etcd's errors: many of them differ only in the text (api/v3rpc/rpctypes in its sources).
constexpr absl::string_view kWrongPassword = "authentication failed, invalid user ID or password";
constexpr absl::string_view kNoUser = "user name is empty";
constexpr absl::string_view kOldToken = "revision of auth store is old";
constexpr absl::string_view kTooLarge = "request is too large";
// Text of the gRPC in etcd, before etcd has seen the request.
constexpr absl::string_view kFarTooLarge = "grpc: received message larger than max";
constexpr absl::string_view kTooMany = "too many requests";
constexpr absl::string_view kNoSpace = "database space exceeded";

bool contains(const grpc::Status& status, absl::string_view text) {
  return absl::StrContains(status.error_message(), text);
}

// Escapes and truncates a peer's text for messages.
std::string escaped(absl::string_view text) {
  constexpr std::size_t kShown = 400;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "..." : "");
}

}  // namespace

// When in doubt the answer is kMember, which makes the caller assume that etcd may have executed the call.
EtcdFailure classify_etcd(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
      return contains(status, kNotSent) ? EtcdFailure::kRefused : EtcdFailure::kMember;
    // An etcd that is stopping ends the calls under way with these codes.
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
      return EtcdFailure::kMember;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return EtcdFailure::kDeadline;
    case grpc::StatusCode::UNAUTHENTICATED:
      return EtcdFailure::kToken;
    // "Too many requests" comes before the request is put into the log; other limits would be exceeded
    // again.
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return contains(status, kTooMany) ? EtcdFailure::kRefused : EtcdFailure::kFinal;
    default:
      return contains(status, kOldToken) ? EtcdFailure::kToken : EtcdFailure::kFinal;
  }
}

absl::Status explain_etcd(const grpc::Status& status, absl::string_view address, absl::string_view user,
                          absl::string_view prefix) {
  const std::string answer = absl::StrCat("etcd at ", address, ": ", escaped(status.error_message()));
  const std::string user_text = user.empty() ? "no user" : absl::StrCat("user \"", escaped(user), "\"");
  if (contains(status, kWrongPassword)) {
    return absl::UnauthenticatedError(
        absl::StrCat(answer, " (", user_text, "): check security.user and security.password"));
  }
  if (contains(status, kNoUser)) {
    return absl::UnauthenticatedError(
        absl::StrCat(answer, " (", user_text,
                     "): etcd has authentication enabled: set security.user and security.password"));
  }
  if (contains(status, kTooLarge) || contains(status, kFarTooLarge)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        answer,
        ": etcd accepts at most 1.5 MiB per request unless started with a larger --max-request-bytes"));
  }
  if (contains(status, kNoSpace)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(answer, ": compact and defragment it, or start it with a larger --quota-backend-bytes"));
  }
  switch (status.error_code()) {
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::PermissionDeniedError(absl::StrCat(
          answer, " (", user_text, "): grant it a role that may read and write all keys that begin with \"",
          escaped(prefix), "\" (etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX)"));
    case grpc::StatusCode::UNAUTHENTICATED:
      return absl::UnauthenticatedError(
          absl::StrCat(answer, " (", user_text, "): etcd does not accept its own tokens"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return not_etcd(address, escaped(status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()), answer);
  }
}

absl::Status not_etcd(absl::string_view address, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("the server at ", address, " is not an etcd v3: ", why));
}

}  // namespace gradwire::store
