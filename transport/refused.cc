#include "gradwire/transport/refused.h"

#include "absl/strings/cord.h"

namespace gradwire::transport {
namespace {

constexpr char kRefused[] = "gradwire/connection-refused";

}  // namespace

absl::Status refused_error(absl::string_view message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kRefused, absl::Cord());
  return status;
}

bool is_refused(const absl::Status& status) { return status.GetPayload(kRefused).has_value(); }

}  // namespace gradwire::transport
