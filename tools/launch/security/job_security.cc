#include "gradwire/tools/launch/security/job_security.h"

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
#include "gradwire/base/process/shortage.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/setup/environment.h"
#include "gradwire/security/setup/inherited_token.h"
#include "gradwire/security/setup/make_credentials.h"
#include "gradwire/security/token/token_file.h"
#include "gradwire/tools/launch/io/fd.h"
#include "gradwire/tools/launch/options/name_pattern.h"

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
  if (!file.valid()) return system_status(absl::StrCat("cannot create the file ", path), errno);
  if (!write_all(file.get(), text)) return system_status(absl::StrCat("cannot write the file ", path), errno);
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

namespace {

using Kind = LaunchSecurity::Kind;

// The name in the certificate of the launcher itself.
constexpr char kLauncherName[] = "launcher";

// The name of an observer, unless its certificate has another one.
constexpr char kObserverName[] = "inspect";

// Lowest number of the token's descriptor. Shell scripts open descriptors with numbers below 10 by
// themselves, and shells use some above for themselves.
constexpr int kFirstDescriptor = 100;

// All that the launcher sets for workers, or reads itself. Its own values are not those of its workers.
constexpr const char* kVariables[] = {
    "GRADWIRE_TOKEN_FD", "GRADWIRE_TOKEN_FILE",     "GRADWIRE_INSECURE", "GRADWIRE_CERTIFICATE_FILE",
    "GRADWIRE_KEY_FILE", "GRADWIRE_AUTHORITY_FILE", "GRADWIRE_JOB",      "GRADWIRE_WORKER_NAME"};

// Returns a copy of `descriptor` that programs inherit. If the limit of descriptors is below the number, it
// is `descriptor` itself.
absl::StatusOr<Descriptor> inheritable(Descriptor descriptor) {
  Descriptor copy(fcntl(descriptor.get(), F_DUPFD, kFirstDescriptor));
  if (copy.valid()) return copy;
  if (fcntl(descriptor.get(), F_SETFD, 0) == 0) return descriptor;
  return errno_status("cannot hand the job's token to the workers", errno);
}

// The path for a process in another working directory.
std::string absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::absolute(path, error);
  return error ? path : full.string();
}

}  // namespace

absl::StatusOr<JobSecurity> JobSecurity::prepare(const LaunchSecurity& options, const std::string& run_id) {
  JobSecurity made(options);
  GRADWIRE_RETURN_IF_ERROR(made.make_stores(run_id));
  for (const char* variable : kVariables) unsetenv(variable);
  // Files that cannot be used are found now, not when the first store opens.
  GRADWIRE_ASSIGN_OR_RETURN(const security::CredentialsPtr credentials,
                            security::make_credentials(made.stores_));
  made.stores_.job = credentials->own_identity().job;
  made.own_name_ = credentials->own_identity().name;
  return made;
}

absl::Status JobSecurity::make_stores(const std::string& run_id) {
  switch (options_.kind) {
    case Kind::kNewToken:
    case Kind::kToken:
      return use_token();
    case Kind::kCertificates:
      stores_ = {.certificate_file = options_.certificate_file,
                 .key_file = options_.key_file,
                 .authority_file = options_.authority_file};
      if (const char* const job = std::getenv("GRADWIRE_JOB")) stores_.job = job;
      return absl::OkStatus();
    case Kind::kNewCertificates: {
      GRADWIRE_ASSIGN_OR_RETURN(CertificateFolder folder, CertificateFolder::create(run_id));
      certificates_.emplace(std::move(folder));
      GRADWIRE_ASSIGN_OR_RETURN(stores_, certificates_->files_for(kLauncherName));
      return absl::OkStatus();
    }
    case Kind::kInsecure:
      stores_.insecure = true;
      return absl::OkStatus();
    case Kind::kThisHost:
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status JobSecurity::use_token() {
  security::Secret token;
  if (options_.kind == Kind::kNewToken) {
    token = security::make_token();
  } else if (!options_.token_file.empty()) {
    GRADWIRE_ASSIGN_OR_RETURN(token, security::read_token_file(options_.token_file));
  } else {
    GRADWIRE_ASSIGN_OR_RETURN(const SecurityOptions inherited, security::with_environment({}));
    GRADWIRE_ASSIGN_OR_RETURN(token, security::token_of(inherited));
  }
  stores_.token = token;
  GRADWIRE_ASSIGN_OR_RETURN(Descriptor descriptor, security::token_descriptor(token));
  GRADWIRE_ASSIGN_OR_RETURN(token_, inheritable(std::move(descriptor)));
  return absl::OkStatus();
}

absl::StatusOr<JobSecurity::Observer> JobSecurity::observer() const {
  Observer observer{.name = kObserverName};
  if (certificates_) {
    GRADWIRE_ASSIGN_OR_RETURN(observer.security, certificates_->files_for(kObserverName));
  } else if (!stores_.certificate_file.empty()) {
    observer.name = own_name_;
    observer.security = {.certificate_file = absolute(stores_.certificate_file),
                         .key_file = absolute(stores_.key_file),
                         .authority_file = absolute(stores_.authority_file)};
  } else if (!options_.token_file.empty()) {
    observer.security.token_file = absolute(options_.token_file);
  } else {
    observer.security.token = stores_.token;
    observer.security.insecure = stores_.insecure;
  }
  return observer;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> JobSecurity::worker_variables(
    const WorkerPlace& place) const {
  std::vector<std::pair<std::string, std::string>> variables;
  const std::string name = expand_name_pattern(options_.worker_name, place);
  if (!name.empty()) variables.emplace_back("GRADWIRE_WORKER_NAME", name);
  if (token_.valid()) variables.emplace_back("GRADWIRE_TOKEN_FD", absl::StrCat(token_.get()));
  if (stores_.insecure) variables.emplace_back("GRADWIRE_INSECURE", "1");
  SecurityOptions files = stores_;
  if (certificates_) {
    GRADWIRE_ASSIGN_OR_RETURN(files, certificates_->files_for(name));
  } else if (!options_.worker_certificate_file.empty()) {
    files.certificate_file = expand_name_pattern(options_.worker_certificate_file, place);
    files.key_file = expand_name_pattern(options_.worker_key_file, place);
  }
  if (!files.certificate_file.empty()) {
    variables.emplace_back("GRADWIRE_CERTIFICATE_FILE", files.certificate_file);
    variables.emplace_back("GRADWIRE_KEY_FILE", files.key_file);
    variables.emplace_back("GRADWIRE_AUTHORITY_FILE", files.authority_file);
    variables.emplace_back("GRADWIRE_JOB", stores_.job);
  }
  return variables;
}

}  // namespace gradwire::tools
