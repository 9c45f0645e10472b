#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/limits.h"
#include "gradwire/transport/buffer_pool.h"
#include "gradwire/transport/connection.h"
#include "gradwire/transport/tcp/socket/address.h"

namespace gradwire::transport {

struct UcxOptions {
  // Received data is checked against these limits before memory is allocated; send() fails for messages over
  // them.
  Limits limits;
  // The proof of this process, and the proof that it demands of others: a token, or insecure credentials for
  // networks in which every process is trusted. Other kinds cannot be used (check_ucx_credentials()).
  // nullptr: no_credentials().
  security::CredentialsPtr credentials;
  // The use of the connections and the name of this process, for the handshake (security/credentials.h).
  std::string purpose;
  std::string own_name;
  // The address or name of the interface to listen on; empty: all interfaces, IPv4 only (UCX 1.13 cannot
  // listen on both address families).
  std::string bind_address;
  // The port to listen on; 0: any free port.
  int port = 0;
  // The host to which other processes connect; see TcpOptions.
  std::string advertised_host;
  // Looks up the names of hosts; see TcpOptions.
  HostLookup look_up;
  // The pool for received buffers; nullptr: the transport creates one.
  std::shared_ptr<BufferPool> pool;
  // The methods that UCX may use, in the syntax of its variable UCX_TLS ("tcp", "self,sm,tcp", "rc,sm", ...).
  // Empty: the value of that variable, or all methods.
  std::string methods;
  // Maximum number of unsent bytes of a connection that are passed to UCX; further messages wait in the
  // connection's queue. A single message may be larger.
  std::size_t max_posted_bytes = std::size_t{64} << 20;
  // After a connection is closed, the memory that the peer may still be reading is kept for at most this
  // time.
  absl::Duration linger_time = absl::Seconds(2);
  // The time in which a process that connects must complete the handshake, and again to introduce itself;
  // shorter in tests.
  absl::Duration introduction_timeout = kIntroductionTimeout;
  // The wait policy of the transport's own thread, if it has one.
  WaitPolicy wait;
};

// FailedPrecondition if connections over UCX cannot use credentials of this kind. The sentence says what to
// do.
absl::Status check_ucx_credentials(security::Credentials::Kind kind);

}  // namespace gradwire::transport
