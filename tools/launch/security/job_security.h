#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/security/authority/job_authority.h"
#include "gradwire/security/security_options.h"
#include "gradwire/tools/launch/options/layout.h"
#include "gradwire/tools/launch/options/security.h"

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

// The token or the certificates of the job, for this launcher's stores and for its workers.
//
// A token reaches the workers by a descriptor of memory that nobody can change, which they inherit from the
// launcher. It is in no command line and no variable, and in no
// file but that of a running job, which only the user can read (tools/running_jobs).
//
// Not thread-safe. Must outlive the workers.
class JobSecurity {
 public:
  // Reads or makes what `options` says. Then removes all variables of security from this process's
  // environment, because they are not meant for the job's workers or its stores. Must be called while the
  // process has one thread, and before the workers' parent is started, which inherits the token's descriptor.
  //
  // Errors: those of the files, with a sentence that names the file and the remedy. Unavailable if the system
  // cannot make a token or certificates.
  static absl::StatusOr<JobSecurity> prepare(const LaunchSecurity& options, const std::string& run_id);

  // For the stores that this launcher serves or uses.
  const SecurityOptions& stores() const { return stores_; }
  // How a process of this user that does not belong to the job, but observes it, proves itself.
  struct Observer {
    // The name for the policies of the workers. With certificates it is that in the certificate.
    std::string name;
    // Absolute paths of files, the job's token if it is in no file, or `insecure`.
    SecurityOptions security;
  };
  // With --secure it makes a certificate for the name "inspect". Errors: as worker_variables().
  absl::StatusOr<Observer> observer() const;

  // The folder that must not outlive the job, or "".
  std::string folder() const { return certificates_ ? certificates_->path() : ""; }
  // The variables of security for a worker, each with its value. Errors: as prepare(); InvalidArgument if the
  // worker cannot have its name.
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> worker_variables(
      const WorkerPlace& place) const;

 private:
  explicit JobSecurity(LaunchSecurity options) : options_(std::move(options)) {}
  absl::Status make_stores(const std::string& run_id);
  absl::Status use_token();

  LaunchSecurity options_;
  // With certificates, also the job that the launcher's own names.
  SecurityOptions stores_;
  // The name in the launcher's own certificate.
  std::string own_name_;
  std::optional<CertificateFolder> certificates_;
  Descriptor token_;
};

}  // namespace gradwire::tools
