#pragma once

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/threads/repeated_task.h"
#include "gradwire/security/tls/certificates/certificate_set.h"

namespace gradwire::security {

// The certificates for new connections. Each examination checks whether one of the three files has changed,
// and then reads all three. If they cannot be used, because only one of them has been replaced yet for
// example, the previous ones remain in use, and a warning names the file and the reason once. Thread-safe.
class RotatingCertificates {
 public:
  // `examine` runs the examination again and again. Errors: as load_certificates(), and those of `examine`.
  static absl::StatusOr<std::shared_ptr<RotatingCertificates>> open(const CertificateFiles& files,
                                                                    const Repeat& examine);

  // The set for a connection that begins now. Never blocks.
  std::shared_ptr<const CertificateSet> current() const;

 private:
  explicit RotatingCertificates(std::shared_ptr<const CertificateSet> set);
  // Reads the files again if they differ from those that are in use.
  void examine();

  const CertificateFiles files_;
  // The files that the last warning was about. It is not repeated for them. Used only by examine(), which one
  // thread runs.
  std::array<FileStamp, 3> warned_;
  // The examinations. Set by open().
  std::shared_ptr<void> examinations_;

  mutable Mutex mutex_;
  std::shared_ptr<const CertificateSet> set_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::security
