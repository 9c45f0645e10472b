#pragma once

#include <cstdint>
#include <string>

namespace gradwire::security {

// The process at the other end of a connection, as far as it is known.
struct PeerIdentity {
  enum class Proof : uint8_t {
    // Nothing: any process that reaches the port may be the peer.
    kNone,
    // The peer has the token of the job. It says its name, which any process with the token could say.
    kToken,
    // The peer has the key of a certificate that the job's authority signed. The name is in the certificate.
    kCertificate,
    // The kernel says that the peer's process belongs to an allowed user of this host. It has no name.
    kUser,
    // The peer is in this process. It has no name.
    kProcess,
  };

  Proof proof = Proof::kNone;
  // The job that the certificate names; empty for other proofs.
  std::string job;
  // The name of the worker; empty if the peer has said none.
  std::string name;
};

}  // namespace gradwire::security
