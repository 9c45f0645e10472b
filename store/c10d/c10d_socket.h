#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/store/calls/endpoint.h"

namespace gradwire::store {

// Where a server of PyTorch's TCPStore is, and whose it may be.
struct C10dTarget {
  Endpoint endpoint;
  // The server must be on this host, and belong to the user of this process or to one of these
  // (SecurityOptions::allowed_users). nullopt: every process may be the server.
  std::optional<std::vector<uid_t>> users = std::vector<uid_t>();
};

// A connection of a client to a server of PyTorch's TCPStore (c10d_protocol.h). Each call blocks until its
// deadline at most. After an error the connection must not be used any more. Errors: Unavailable if the
// server cannot be reached or closes the connection; DeadlineExceeded; ResourceExhausted for an answer over a
// limit; PermissionDenied if the server may not be the server.
//
// Not thread-safe.
class C10dSocket {
 public:
  // The kind of the server that has answered.
  enum class Server { kTorch, kGradwire };

  // Connects to the first address of the target that answers, and sends the greeting. `server` gets the kind
  // of the server. FailedPrecondition if the server does not speak the protocol.
  static absl::StatusOr<C10dSocket> open(const C10dTarget& target, Clock& clock, absl::Time deadline,
                                         Server& server);

  absl::Status send(absl::string_view bytes, absl::Time deadline);
  absl::StatusOr<std::string> read(std::size_t size, absl::Time deadline);
  // Reads an integer of 8 bytes.
  absl::StatusOr<uint64_t> read_number(absl::Time deadline);
  // Reads a length and so many bytes, at most `max_bytes`.
  absl::StatusOr<std::string> read_string(std::size_t max_bytes, absl::Time deadline);
  // Sends the bytes of queries without answers, and waits until the server has executed them.
  absl::Status execute(std::string queries, absl::Time deadline);
  // Whether the server has closed the connection, or sent something that was not asked for.
  bool is_stale() const;

 private:
  C10dSocket(Descriptor socket, Clock& clock) : socket_(std::move(socket)), clock_(&clock) {}

  static absl::StatusOr<Descriptor> connect(const Endpoint& endpoint, Clock& clock, absl::Time deadline);
  // Blocks until the socket is ready for `events` of poll(2).
  static absl::Status wait(int socket, short events, Clock& clock, absl::Time deadline);

  // Fills the buffer, which is empty, with at least one byte.
  absl::Status receive(absl::Time deadline);

  Descriptor socket_;
  Clock* clock_;
  uint32_t next_nonce_ = 1;
  std::unique_ptr<char[]> buffer_;
  // The bytes in the buffer that have arrived and have not been read.
  absl::string_view unread_;
};

}  // namespace gradwire::store
