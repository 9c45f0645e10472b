#include "gradwire/security/setup/make_credentials.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/error.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/setup/environment.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/certificates/certificate_files.h"
#include "gradwire/security/token/token_credentials.h"

namespace gradwire::security {
namespace {

// Returns the names of the certificate's options that are set, or of those that are not, for messages.
std::string certificate_options(const SecurityOptions& options, bool set) {
  std::vector<absl::string_view> names;
  const auto add = [&](const std::string& option, absl::string_view name) {
    if (option.empty() != set) names.push_back(name);
  };
  add(options.certificate_file, "certificate_file (GRADWIRE_CERTIFICATE_FILE)");
  add(options.key_file, "key_file (GRADWIRE_KEY_FILE)");
  add(options.authority_file, "authority_file (GRADWIRE_AUTHORITY_FILE)");
  return absl::StrJoin(names, " and ");
}

absl::Status check_consistent(const SecurityOptions& options) {
  const bool has_token = !options.token.empty() || !options.token_file.empty();
  const std::string files = certificate_options(options, /*set=*/true);
  const std::string missing = certificate_options(options, /*set=*/false);
  const absl::string_view token = options.token.empty() ? "token_file" : "token";
  if (has_token && !files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SecurityOptions has both ", token, " and ", files,
                     ", but a job uses either a token or certificates; remove those of the other kind"));
  }
  if (!files.empty() && !missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("SecurityOptions has ", files, ", but lacks ", missing,
                                                   "; give all three, or none of them"));
  }
  if (options.insecure && (has_token || !files.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("SecurityOptions is insecure, but has ",
                                                   has_token ? token : absl::string_view(files),
                                                   "; remove insecure, or the other option"));
  }
  return absl::OkStatus();
}

absl::StatusOr<CredentialsPtr> from_certificates(const SecurityOptions& options) {
  GRADWIRE_ASSIGN_OR_RETURN(CredentialsPtr credentials,
                            make_certificate_credentials({.certificate = options.certificate_file,
                                                          .key = options.key_file,
                                                          .authority = options.authority_file}));
  const std::string job = credentials->own_identity().job;
  if (options.job.empty() || job == options.job) return credentials;
  return absl::InvalidArgumentError(
      absl::StrCat("the certificate file ", options.certificate_file, " is of the job \"", job,
                   "\", but this process belongs to the job \"", options.job,
                   "\" (SecurityOptions::job, GRADWIRE_JOB); give it a certificate of that job in "
                   "SecurityOptions::certificate_file (GRADWIRE_CERTIFICATE_FILE), or correct the job"));
}

}  // namespace

absl::StatusOr<CredentialsPtr> make_credentials(const SecurityOptions& given) {
  GRADWIRE_ASSIGN_OR_RETURN(const SecurityOptions options, with_environment(given));
  GRADWIRE_RETURN_IF_ERROR(check_consistent(options));
  if (!options.certificate_file.empty()) return from_certificates(options);
  GRADWIRE_ASSIGN_OR_RETURN(const Secret token, token_of(options));
  if (!token.empty()) return make_token_credentials(token, options.check_addresses);
  return options.insecure ? insecure_credentials() : no_credentials();
}

absl::Status check_own_name(const Credentials& credentials, const SecurityOptions& options,
                            const std::string& worker) {
  const PeerIdentity own = credentials.own_identity();
  if (own.proof != PeerIdentity::Proof::kCertificate || own.name == worker) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the certificate file ", options.certificate_file, " is that of worker \"", own.name,
                   "\" of the job \"", own.job, "\", but this process starts as worker \"", worker,
                   "\"; give it the certificate of that worker in SecurityOptions::certificate_file "
                   "(GRADWIRE_CERTIFICATE_FILE), or start it under the name in the certificate"));
}

}  // namespace gradwire::security
