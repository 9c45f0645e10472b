#include "gradwire/tools/launch/security/certificate_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/name.h"
#include "gradwire/tools/launch/io/fd.h"

namespace gradwire::tools {
namespace {

// Longer than any job. The certificates are of no use after the job, because no process trusts its authority
// any more.
constexpr absl::Duration kValidity = absl::Hours(24 * 365);

// The name of a file for a worker: its colons would separate paths in some variables.
std::string file_name(absl::string_view worker) {
  std::string name(worker);
  for (char& each : name) {
    if (each == ':') each = '+';
  }
  return name;
}

absl::Status write_new_file(const std::string& path, absl::string_view text) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return errno_status(absl::StrCat("cannot create the file ", path), errno);
  if (!write_all(file.get(), text)) return errno_status(absl::StrCat("cannot write the file ", path), errno);
  return absl::OkStatus();
}

// The id of a job may have characters that its certificates cannot have.
std::string job_name(const std::string& run_id) { return check_name("job", run_id).ok() ? run_id : "job"; }

}  // namespace

absl::StatusOr<CertificateFolder> CertificateFolder::create(const std::string& job) {
  const char* const set = std::getenv("TMPDIR");
  const std::string parent = set != nullptr && *set != '\0' ? set : "/tmp";
  std::string path = absl::StrCat(parent, "/gradwire_secure_XXXXXX");
  GRADWIRE_ASSIGN_OR_RETURN(security::JobAuthority authority,
                            security::JobAuthority::create(job_name(job), kValidity));
  // mkdtemp() makes the folder with the mode 0700.
  if (mkdtemp(path.data()) == nullptr) {
    return errno_status(absl::StrCat("cannot create a folder for certificates in ", parent), errno);
  }
  CertificateFolder folder(std::move(path), std::move(authority));
  GRADWIRE_RETURN_IF_ERROR(
      write_new_file(absl::StrCat(folder.path_, "/authority.pem"), folder.authority_.certificate()));
  return folder;
}

CertificateFolder::CertificateFolder(CertificateFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), authority_(std::move(other.authority_)) {}

CertificateFolder::~CertificateFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::StatusOr<SecurityOptions> CertificateFolder::files_for(const std::string& name) const {
  GRADWIRE_RETURN_IF_ERROR(check_name("worker name", name));
  const std::string stem = absl::StrCat(path_, "/", file_name(name));
  const SecurityOptions files = {.certificate_file = stem + ".certificate.pem",
                                 .key_file = stem + ".key.pem",
                                 .authority_file = path_ + "/authority.pem"};
  // The key is written last.
  if (access(files.key_file.c_str(), F_OK) == 0) return files;
  GRADWIRE_ASSIGN_OR_RETURN(const security::JobAuthority::Identity identity, authority_.issue(name));
  GRADWIRE_RETURN_IF_ERROR(write_new_file(files.certificate_file, identity.certificate));
  GRADWIRE_RETURN_IF_ERROR(write_new_file(files.key_file, identity.key.reveal()));
  return files;
}

}  // namespace gradwire::tools
