#pragma once

#include "absl/status/statusor.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/security_options.h"

namespace gradwire::security {

// Returns `given` with its empty options filled from the environment:
//
//   GRADWIRE_TOKEN_FD          token; inherited_token.h describes the descriptor. Wins over the next one
//   GRADWIRE_TOKEN_FILE        token_file
//   GRADWIRE_CERTIFICATE_FILE  certificate_file
//   GRADWIRE_KEY_FILE          key_file
//   GRADWIRE_AUTHORITY_FILE    authority_file
//   GRADWIRE_JOB               job
//   GRADWIRE_POLICY_FILE       policy_file
//   GRADWIRE_INSECURE          insecure: 1 for true, 0 for false
//
// Options that code gives win: with a token, a token file or `insecure` in `given`, no proof is taken from
// the environment; with a part of a certificate in it, only the other parts. GRADWIRE_INSECURE has no effect
// if there is a token or a certificate: then that is used.
//
// The first call in the process reads GRADWIRE_TOKEN_FD, closes it and removes the variable. Later calls, for
// example of other agents, get the same token. Thread-safe, as far as other threads do not change the
// environment at the same time.
//
// InvalidArgument if the environment has both a token and certificates, or a value is malformed.
absl::StatusOr<SecurityOptions> with_environment(SecurityOptions given);

// Whether complete options have a proof, or do without one on purpose. Without either no connection leaves
// this host.
bool may_leave_host(const SecurityOptions& options);

// The token of complete options, from `token` or `token_file`; empty if they have neither. InvalidArgument if
// they have both, or if it is too short; otherwise the errors of read_token_file().
absl::StatusOr<Secret> token_of(const SecurityOptions& options);

}  // namespace gradwire::security
