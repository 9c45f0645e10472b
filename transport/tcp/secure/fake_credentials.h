#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "gradwire/security/credentials.h"

namespace gradwire::transport {

// Credentials for tests, without secrets. Each end sends a greeting with its name, and expects one. The
// stream changes each byte depending on its position, reads ahead, and returns few bytes at a time.
struct FakeCredentialsOptions {
  security::Credentials::Kind kind = security::Credentials::Kind::kCertificate;
  // A peer with another password is refused with Unauthenticated.
  std::string password = "right";
  // Whether the connection has a stream.
  bool has_stream = true;
  // After this number of bytes the stream fails with EPROTO and the status Unauthenticated.
  std::size_t read_fails_after = std::numeric_limits<std::size_t>::max();
  std::size_t write_fails_after = std::numeric_limits<std::size_t>::max();
  // Number of writes for which the kernel has no memory (ENOBUFS). After each of them one succeeds.
  int writes_without_memory = 0;
};

security::CredentialsPtr fake_credentials(FakeCredentialsOptions options = {});

// The bytes of the greeting that an end with these facts sends.
std::string fake_greeting(const std::string& password, const security::ConnectionFacts& facts);

}  // namespace gradwire::transport
