#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradwire::security {

// Judges the first bytes that the peer of a TLS handshake has sent, before OpenSSL sees them. `ended`: no
// more bytes follow. Returns OK if they are TLS; an Unauthenticated error that describes what the peer speaks
// instead; nothing if more bytes are needed. A refusal of Gradwire's own, which a server sends to a client
// with other credentials, is shown, escaped.
std::optional<absl::Status> judge_first_bytes(absl::string_view bytes, bool ended, const std::string& peer);

}  // namespace gradwire::security
