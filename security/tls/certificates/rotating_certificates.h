#pragma once

#include <array>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/security/tls/certificates/certificate_set.h"

namespace gradwire::security {

// The certificates for new connections. Checks at most once a second, when a connection begins, whether one
// of the three files has changed, and then reads all three. If they cannot be used, because only one of them
// has been replaced yet for example, the previous ones remain in use, and a warning names the file and the
// reason once. Thread-safe.
class RotatingCertificates {
 public:
  // `clock` must outlive the object. Errors: as load_certificates().
  static absl::StatusOr<std::unique_ptr<RotatingCertificates>> open(const CertificateFiles& files,
                                                                    Clock& clock);

  // The set for a connection that begins now. Reads files, so it may take some milliseconds after a change.
  std::shared_ptr<const CertificateSet> current();

 private:
  RotatingCertificates(std::shared_ptr<const CertificateSet> set, Clock& clock);
  // Reads the files again if they differ from `used` and from those that could not be used.
  void check_files(const CertificateSet& used);

  const CertificateFiles files_;
  Clock& clock_;

  Mutex mutex_;
  std::shared_ptr<const CertificateSet> set_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_check_ ABSL_GUARDED_BY(mutex_);
  // A thread checks the files; the others go on with the set that there is.
  bool checking_ ABSL_GUARDED_BY(mutex_) = false;
  // The files that the last warning was about. It is not repeated for them.
  std::array<FileStamp, 3> warned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gradwire::security
