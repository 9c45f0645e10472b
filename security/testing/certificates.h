#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/security/tls/certificates/certificate_files.h"

namespace gradwire::security {

// For tests: an authority, the certificates that it signs, and their files in a temporary folder. A failure
// ends the process. Not thread-safe.
//
//   TestAuthority authority;
//   CertificateFiles files = authority.worker("job", "a");
class TestAuthority {
 public:
  enum class KeyType { kP256, kEd25519, kRsa2048, kRsa1024 };

  // The contents of a certificate.
  struct Contents {
    // The subject alternative names of the type URI.
    std::vector<std::string> uris = {};
    // Those of the type IP address.
    std::vector<std::string> addresses = {};
    // The times from which and until which it is valid, from now.
    absl::Duration from = -absl::Hours(1);
    absl::Duration until = absl::Hours(1);
    KeyType key = KeyType::kP256;
    // Allows only the role of a TLS server.
    bool only_server = false;
  };

  struct Pem {
    std::string certificate;
    std::string key;
  };

  explicit TestAuthority(const std::string& name = "Test authority");
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // The authority's certificate.
  const std::string& pem() const { return pem_; }
  // An authority whose certificate this one signs. It must not outlive this one.
  std::unique_ptr<TestAuthority> intermediate() const;

  Pem issue(const Contents& contents) const;
  // Writes files that no other call returns. The key has mode 0600.
  CertificateFiles write(const Pem& pem, const std::string& authority_pem) const;

  CertificateFiles worker(const std::string& job, const std::string& name) const;
  // For the worker "gradwire://job/a", unless `contents` has other URIs.
  CertificateFiles files(Contents contents) const;

  // Writes a text to a new file of this mode in the folder, and returns its path.
  std::string write_file(const std::string& text, unsigned mode = 0600) const;

 private:
  struct Keys;
  TestAuthority(const std::string& name, const TestAuthority* issuer);

  const std::unique_ptr<Keys> keys_;
  std::string pem_;
  std::string folder_;
  mutable int files_ = 0;
};

// Replaces a file's content as a rotation does: another file takes its name. Keeps its mode.
void replace_file(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

}  // namespace gradwire::security
