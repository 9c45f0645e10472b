#pragma once

#include <string>

namespace gradwire::security {

// The files (PEM) with which a worker proves who it is.
struct CertificateFiles {
  // The worker's certificate, followed by those of intermediate authorities if there are any.
  std::string certificate;
  // The certificate's private key, without a passphrase. Nobody but its owner, this process's user or
  // root, may read it, with one exception (security/checked_file.h).
  std::string key;
  // The certificates of the authority that signs the certificates of all workers of the job. More than one
  // while the authority is being replaced.
  std::string authority;
};

}  // namespace gradwire::security
