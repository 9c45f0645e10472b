#include "gradwire/security/tls/certificates/rotating_certificates.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log/log.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

absl::StatusOr<std::shared_ptr<const CertificateSet>> load_for(const PeerIdentity& worker,
                                                               const CertificateFiles& files) {
  absl::StatusOr<std::shared_ptr<const CertificateSet>> set = load_certificates(files);
  if (!set.ok()) return set;
  // The peers know the worker by this name.
  if ((*set)->worker.job == worker.job && (*set)->worker.name == worker.name) return set;
  return absl::InvalidArgumentError(absl::StrCat(
      "the certificate file ", files.certificate, " names another worker: got \"", worker_uri((*set)->worker),
      "\", expected \"", worker_uri(worker), "\"; start the process again for a new name"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<RotatingCertificates>> RotatingCertificates::open(
    const CertificateFiles& files, const Repeat& examine) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<const CertificateSet> set, load_certificates(files));
  std::shared_ptr<RotatingCertificates> opened(new RotatingCertificates(std::move(set)));
  GRADWIRE_ASSIGN_OR_RETURN(opened->examinations_,
                            examine([weak = std::weak_ptr<RotatingCertificates>(opened)] {
                              if (const auto self = weak.lock()) self->examine();
                            }));
  return opened;
}

RotatingCertificates::RotatingCertificates(std::shared_ptr<const CertificateSet> set)
    : files_(set->files), set_(std::move(set)) {}

std::shared_ptr<const CertificateSet> RotatingCertificates::current() const {
  MutexLock lock(mutex_);
  return set_;
}

void RotatingCertificates::examine() {
  const std::shared_ptr<const CertificateSet> used = current();
  const std::array<FileStamp, 3> stamps = stamps_of(files_);
  if (stamps == used->stamps) return;
  // Files that could not be used are read every second until they can be. A rotation replaces them one after
  // the other, and a file can change twice within the resolution of its times.
  absl::StatusOr<std::shared_ptr<const CertificateSet>> set = load_for(used->worker, files_);
  if (set.ok()) {
    {
      MutexLock lock(mutex_);
      set_.swap(*set);
    }
    log(LogLevel::kInfo, "new connections use the changed certificate ", files_.certificate);
  } else if (std::exchange(warned_, stamps) != stamps) {
    log(LogLevel::kWarning, "the changed certificates are not used: ", set.status().message(),
        "; until this is mended, new connections use the previous ones");
  }
}

}  // namespace gradwire::security
