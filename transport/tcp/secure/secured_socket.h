#pragma once

#include <memory>

#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/peer_identity.h"
#include "gradwire/security/secure_stream.h"

namespace gradwire::transport {

// The socket of an established connection.
struct SecuredSocket {
  Descriptor socket;
  security::PeerIdentity peer;
  // All bytes pass through it; nullptr: they travel as they are. It must be dropped before the socket is
  // closed.
  std::shared_ptr<security::SecureStream> stream;
};

}  // namespace gradwire::transport
