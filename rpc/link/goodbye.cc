#include "gradwire/rpc/link/goodbye.h"

#include "absl/strings/str_cat.h"
#include "gradwire/codec/codec_containers.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/core/envelope.h"

namespace gradwire::rpc {

std::string goodbye(const absl::Status& reason) {
  EnvelopeBox envelope;
  status_to_proto(reason, *envelope->mutable_goodbye()->mutable_reason());
  return envelope->SerializeAsString();
}

// Aborted makes the receiver regard the sender as lost (Handshake::part).
absl::Status declared_dead(absl::string_view worker, absl::string_view by) {
  return absl::AbortedError(
      absl::StrCat("worker \"", worker, "\" was declared dead by \"", by, "\" and must be restarted"));
}

}  // namespace gradwire::rpc
