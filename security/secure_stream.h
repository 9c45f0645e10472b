#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gradwire/security/peer_identity.h"

namespace gradwire::security {

// The encrypted bytes of one connection, over a non-blocking socket that the owner of the stream closes. One
// thread may read while another one writes.
class SecureStream {
 public:
  virtual ~SecureStream() = default;

  // As readv(2): returns the number of bytes; 0 after the peer has ended the stream properly; -1 with errno,
  // EAGAIN if nothing is there yet. May return fewer bytes than are there: only EAGAIN means that the socket
  // is empty. The places have at least one byte together.
  virtual ssize_t read(absl::Span<const iovec> places) = 0;
  // As sendmsg(2): returns the number of bytes that the kernel has taken; -1 with errno, EAGAIN if it has no
  // room. After EAGAIN the next call must begin with the same bytes. They may have moved in memory.
  virtual ssize_t write(absl::Span<const iovec> pieces) = 0;
  // Says to the peer that no more bytes follow.
  virtual void end_writes() = 0;
  // Why read() or write() failed with errno EPROTO: a sentence for the user, for example that the peer
  // refused this process's certificate because it has expired.
  virtual absl::Status failure() const = 0;
};

// The beginning of a connection, in which each end proves who it is. Not thread-safe.
class SocketHandshake {
 public:
  // The event that step() waits for.
  enum class Progress : uint8_t { kDone, kToRead, kToWrite };

  virtual ~SocketHandshake() = default;

  // Goes on as far as the socket allows. Reads no byte behind the handshake. Errors: Unauthenticated, with a
  // sentence that names the file, the peer and the remedy; Unavailable if the peer closed the connection. The
  // caller closes the connection after an error; the peer has been sent the reason as far as that is
  // possible.
  virtual absl::StatusOr<Progress> step() = 0;
  // After kDone.
  virtual const PeerIdentity& peer() const = 0;
  // After kDone, once: the stream through which all bytes pass from now on. nullptr: they travel as they are
  // on the socket.
  virtual std::shared_ptr<SecureStream> take_stream() = 0;
};

}  // namespace gradwire::security
