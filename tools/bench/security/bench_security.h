#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "gradwire/security/security_options.h"

namespace gradwire::bench {

// The members' certificates in the suite "security": an authority, and for each rank the files RANK.pem and
// RANK.key. Each certificate is valid for a day, for the worker "gradwire://bench/w<rank>" and the host
// "localhost". The folder ends with this object.
class BenchCertificates {
 public:
  // Calls the program openssl. Throws std::runtime_error if that fails.
  explicit BenchCertificates(int members);
  ~BenchCertificates();
  BenchCertificates(const BenchCertificates&) = delete;
  BenchCertificates& operator=(const BenchCertificates&) = delete;

  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
};

// The protection of a member's connections over "token" or "tls"; none for other transports, and then they
// stay on this host. `folder`: of the certificates.
SecurityOptions security_of(absl::string_view transport, const std::string& folder, int rank);

// The transport of an agent, "tcp" for the names above.
std::string agent_transport(const std::string& transport);

// The text of a file. Throws std::runtime_error if it cannot be read.
std::string read_text(const std::string& path);

}  // namespace gradwire::bench
