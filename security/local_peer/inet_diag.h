#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gradwire/security/local_peer/tcp_end.h"

namespace gradwire::security {

// The messages by which the kernel is asked for the owner of one TCP socket (sock_diag(7), an exact lookup).
// Pure.

// More than any answer has that is used.
inline constexpr std::size_t kMaxInetDiagAnswer = 4096;

// The request for the socket from `source` to `destination`. `sequence` comes back in the answer.
std::string inet_diag_request(const TcpEnd& source, const TcpEnd& destination, uint32_t sequence);

// The request for the socket that listens where `end` is the address of a server.
std::string inet_diag_listener_request(const TcpEnd& end, uint32_t sequence);
// Returns that socket. Errors as below; InvalidArgument also for a socket that does not listen at the port.
absl::StatusOr<FoundSocket> parse_inet_diag_listener(absl::string_view answer, const TcpEnd& end,
                                                     uint32_t sequence);

// Returns the socket that an answer describes. NotFound: the kernel knows no such socket, or does not support
// the request; it reports both in the same way. PermissionDenied and Unavailable: the kernel's error.
// InvalidArgument: the answer is malformed, or is about another socket, for example one that listens at the
// port.
absl::StatusOr<FoundSocket> parse_inet_diag_answer(absl::string_view answer, const TcpEnd& source,
                                                   const TcpEnd& destination, uint32_t sequence);

}  // namespace gradwire::security
