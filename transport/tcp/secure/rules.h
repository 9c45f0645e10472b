#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/credentials.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire::transport {

// The proof that credentials of this kind give and demand.
Preface::Proof proof_of(security::Credentials::Kind kind);

// FailedPrecondition for an action (for example "cannot listen on 10.0.0.1") that needs another host, but
// this process has no credentials.
absl::Status leaves_host_error(absl::string_view action);

// The sentence for a connecting process whose proof differs from that of this process.
std::string other_proof_sentence(Preface::Proof theirs, Preface::Proof own);

}  // namespace gradwire::transport
