#include "gradwire/codec/codec_containers.h"

#include "gradwire/base/error.h"

namespace gradwire::rpc {

void status_to_proto(const absl::Status& status, proto::StatusValue& out) {
  out.set_code(static_cast<int>(status.code()));
  out.set_message(std::string(status.message()));
  out.set_worker(worker_of(status));
}

// The code comes from the peer. An unknown code becomes kUnknown, never OK: that would turn a failure into
// a success.
absl::Status status_from_proto(const proto::StatusValue& in) {
  if (in.code() == 0) return absl::OkStatus();
  const bool known = in.code() > 0 && in.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return with_worker(
      absl::Status(known ? static_cast<absl::StatusCode>(in.code()) : absl::StatusCode::kUnknown,
                   in.message()),
      in.worker());
}

absl::Status Codec<absl::Status>::encode(const absl::Status& value, Encoder&, proto::Value& out) {
  status_to_proto(value, *out.mutable_status());
  return absl::OkStatus();
}

absl::StatusOr<absl::Status> Codec<absl::Status>::decode(const proto::Value& in, Decoder&) {
  if (in.kind_case() != proto::Value::kStatus) return wrong_kind("Status", in);
  return absl::StatusOr<absl::Status>(absl::in_place, status_from_proto(in.status()));
}

}  // namespace gradwire::rpc
