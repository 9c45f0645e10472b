#include "gradwire/transport/ucx/ucx_options.h"

#include "absl/strings/str_cat.h"

namespace gradwire::transport {
namespace {

constexpr char kRemedy[] =
    "start the job with the launcher or give all its processes one token (SecurityOptions::token_file, "
    "GRADWIRE_TOKEN_FILE), or leave \"ucx\" out of RpcBackendOptions::transports";

}  // namespace

absl::Status check_ucx_credentials(security::Credentials::Kind kind) {
  switch (kind) {
    case security::Credentials::Kind::kToken:
    case security::Credentials::Kind::kInsecure:
      return absl::OkStatus();
    case security::Credentials::Kind::kCertificate:
      return absl::FailedPreconditionError(absl::StrCat(
          "the transport \"ucx\" takes a token, because UCX has no TLS, but this process has a certificate; ",
          kRemedy));
    case security::Credentials::Kind::kNone:
      break;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the transport \"ucx\" takes a token, because it cannot find out who connects, but this process has no "
      "credentials; ",
      kRemedy,
      ", or set SecurityOptions::insecure (GRADWIRE_INSECURE=1) if every process in the network is trusted"));
}

}  // namespace gradwire::transport
