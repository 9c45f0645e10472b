#include "gradwire/security/setup/make_credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "gradwire/security/testing/certificates.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SecurityOptions options_of(const CertificateFiles& files) {
  return {.certificate_file = files.certificate, .key_file = files.key, .authority_file = files.authority};
}

std::string message(const absl::Status& status) { return std::string(status.message()); }

TEST(MakeCredentials, TheCertificateIsOfTheJobOfTheProcess) {
  const TestAuthority authority;
  SecurityOptions options = options_of(authority.worker("mnist", "trainer0"));
  EXPECT_TRUE(make_credentials(options).ok());
  options.job = "mnist";
  EXPECT_TRUE(make_credentials(options).ok());
  options.job = "cifar";
  const absl::Status status = make_credentials(options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_EQ(
      message(status),
      "the certificate file " + options.certificate_file +
          " is of the job \"mnist\", but this process belongs to the job \"cifar\" (SecurityOptions::job, "
          "GRADWIRE_JOB); give it a certificate of that job in SecurityOptions::certificate_file "
          "(GRADWIRE_CERTIFICATE_FILE), or correct the job");
}

TEST(MakeCredentials, TheCertificateIsOfTheWorkerThatStarts) {
  const TestAuthority authority;
  const SecurityOptions options = options_of(authority.worker("mnist", "trainer0"));
  const absl::StatusOr<CredentialsPtr> credentials = make_credentials(options);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_TRUE(check_own_name(**credentials, options, "trainer0").ok());
  const absl::Status status = check_own_name(**credentials, options, "trainer1");
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr("the certificate file " + options.certificate_file),
                                     HasSubstr("is that of worker \"trainer0\" of the job \"mnist\""),
                                     HasSubstr("this process starts as worker \"trainer1\"")));
}

TEST(MakeCredentials, ContradictionsAreNamed) {
  const auto error = [](const SecurityOptions& options) {
    const absl::Status status = make_credentials(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return message(status);
  };
  EXPECT_EQ(
      error({.token = std::string(32, 't'), .key_file = "/k"}),
      "SecurityOptions has both token and key_file (GRADWIRE_KEY_FILE), but a job uses either a token or "
      "certificates; remove those of the other kind");
  EXPECT_EQ(
      error({.certificate_file = "/c", .key_file = "/k"}),
      "SecurityOptions has certificate_file (GRADWIRE_CERTIFICATE_FILE) and key_file (GRADWIRE_KEY_FILE), "
      "but lacks authority_file (GRADWIRE_AUTHORITY_FILE); give all three, or none of them");
  EXPECT_EQ(error({.token_file = "/t", .insecure = true}),
            "SecurityOptions is insecure, but has token_file; remove insecure, or the other option");
}

TEST(MakeCredentials, OtherKindsNameNoWorker) {
  for (const SecurityOptions& options :
       {SecurityOptions{.token = std::string(32, 't'), .job = "mnist"}, SecurityOptions{.insecure = true}}) {
    const absl::StatusOr<CredentialsPtr> credentials = make_credentials(options);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    EXPECT_TRUE(check_own_name(**credentials, options, "trainer1").ok());
  }
}

}  // namespace
}  // namespace gradwire::security
