#include "gradwire/security/tls/certificates/rotating_certificates.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/log.h"
#include "gradwire/security/tls/certificates/worker_certificate.h"

namespace gradwire::security {
namespace {

constexpr absl::Duration kBetweenChecks = absl::Seconds(1);

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

absl::StatusOr<std::unique_ptr<RotatingCertificates>> RotatingCertificates::open(
    const CertificateFiles& files, Clock& clock) {
  absl::StatusOr<std::shared_ptr<const CertificateSet>> set = load_certificates(files);
  if (!set.ok()) return set.status();
  return std::unique_ptr<RotatingCertificates>(new RotatingCertificates(*std::move(set), clock));
}

RotatingCertificates::RotatingCertificates(std::shared_ptr<const CertificateSet> set, Clock& clock)
    : files_(set->files), clock_(clock), set_(std::move(set)), next_check_(clock.now() + kBetweenChecks) {}

std::shared_ptr<const CertificateSet> RotatingCertificates::current() {
  std::shared_ptr<const CertificateSet> used;
  {
    const absl::Time now = clock_.now();
    MutexLock lock(mutex_);
    if (checking_ || now < next_check_) return set_;
    checking_ = true;
    next_check_ = now + kBetweenChecks;
    used = set_;
  }
  check_files(*used);
  MutexLock lock(mutex_);
  checking_ = false;
  return set_;
}

void RotatingCertificates::check_files(const CertificateSet& used) {
  const std::array<FileStamp, 3> stamps = stamps_of(files_);
  if (stamps == used.stamps) return;
  // Files that could not be used are read every second until they can be. A rotation replaces them one after
  // the other, and a file can change twice within the resolution of its times.
  absl::StatusOr<std::shared_ptr<const CertificateSet>> set = load_for(used.worker, files_);
  const absl::Status loaded = set.status();
  {
    MutexLock lock(mutex_);
    if (loaded.ok()) {
      std::swap(set_, *set);
    } else if (std::exchange(warned_, stamps) == stamps) {
      return;
    }
  }
  if (loaded.ok()) {
    log(LogLevel::kInfo, "new connections use the changed certificate ", files_.certificate);
  } else {
    log(LogLevel::kWarning, "the changed certificates are not used: ", loaded.message(),
        "; until this is mended, new connections use the previous ones");
  }
}

}  // namespace gradwire::security
