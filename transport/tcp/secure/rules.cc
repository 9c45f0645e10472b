#include "gradwire/transport/tcp/secure/rules.h"

#include "absl/strings/str_cat.h"

namespace gradwire::transport {
namespace {

absl::string_view text_of(Preface::Proof proof) {
  switch (proof) {
    case Preface::Proof::kNone:
      return "no credentials";
    case Preface::Proof::kToken:
      return "a token";
    case Preface::Proof::kCertificate:
      return "a certificate";
  }
  return "unknown credentials";
}

}  // namespace

Preface::Proof proof_of(security::Credentials::Kind kind) {
  switch (kind) {
    case security::Credentials::Kind::kToken:
      return Preface::Proof::kToken;
    case security::Credentials::Kind::kCertificate:
      return Preface::Proof::kCertificate;
    case security::Credentials::Kind::kNone:
    case security::Credentials::Kind::kInsecure:
      return Preface::Proof::kNone;
  }
  return Preface::Proof::kNone;
}

absl::Status leaves_host_error(absl::string_view action) {
  return absl::FailedPreconditionError(absl::StrCat(
      action, ": this process has no credentials, so its connections stay on this host (127.0.0.1 or ::1); ",
      security::kHowToSecure));
}

std::string other_proof_sentence(Preface::Proof theirs, Preface::Proof own) {
  return absl::StrCat(
      "the connecting process has ", text_of(theirs), ", the accepting process has ", text_of(own),
      "; give both the same token, or certificates of the same job (SecurityOptions, or start "
      "both with the launcher)");
}

}  // namespace gradwire::transport
