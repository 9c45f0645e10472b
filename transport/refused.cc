#include "gradwire/transport/refused.h"

#include "absl/strings/cord.h"

namespace gradwire::transport {
namespace {

constexpr char kRefused[] = "gradwire/connection-refused";
constexpr char kUnresolved[] = "gradwire/host-unresolved";

absl::Status marked_error(absl::string_view message, absl::string_view mark) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(mark, absl::Cord());
  return status;
}

}  // namespace

absl::Status refused_error(absl::string_view message) { return marked_error(message, kRefused); }
bool is_refused(const absl::Status& status) { return status.GetPayload(kRefused).has_value(); }

absl::Status unresolved_error(absl::string_view message) { return marked_error(message, kUnresolved); }
bool is_unresolved(const absl::Status& status) { return status.GetPayload(kUnresolved).has_value(); }

}  // namespace gradwire::transport
