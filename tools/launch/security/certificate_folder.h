#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "gradwire/security/authority/job_authority.h"
#include "gradwire/security/security_options.h"

namespace gradwire::tools {

// The files of --secure: a folder that only this user can enter, with the certificate of the job's authority,
// and a certificate and a key for each process of the job. The key of the authority is in no file.
//
// The destructor removes the folder. Not thread-safe.
class CertificateFolder {
 public:
  // Makes the folder in TMPDIR, and the authority. Unavailable if that fails.
  static absl::StatusOr<CertificateFolder> create(const std::string& job);

  CertificateFolder(CertificateFolder&& other) noexcept;
  CertificateFolder& operator=(CertificateFolder&&) = delete;
  ~CertificateFolder();

  const std::string& path() const { return path_; }
  // Returns the files of the process `name`, which are made in the first call. InvalidArgument: `name` cannot
  // be the name of a worker. Unavailable: a file cannot be written.
  absl::StatusOr<SecurityOptions> files_for(const std::string& name) const;

 private:
  CertificateFolder(std::string path, security::JobAuthority authority)
      : path_(std::move(path)), authority_(std::move(authority)) {}

  std::string path_;  // Empty if moved from.
  security::JobAuthority authority_;
};

}  // namespace gradwire::tools
