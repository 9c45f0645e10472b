#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"

namespace gradwire::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Status load(const CertificateFiles& files) { return make_certificate_credentials(files).status(); }

std::string message(const absl::Status& status) { return std::string(status.message()); }

TEST(CertificateFiles, NameTheirWorker) {
  const TestAuthority authority;
  const CertificateFiles files = authority.worker("big-job", "ps:0");
  const absl::StatusOr<CredentialsPtr> credentials = make_certificate_credentials(files);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const PeerIdentity worker = (*credentials)->own_identity();
  EXPECT_EQ(worker.proof, PeerIdentity::Proof::kCertificate);
  EXPECT_EQ(worker.job, "big-job");
  EXPECT_EQ(worker.name, "ps:0");
  EXPECT_EQ((*credentials)->kind(), Credentials::Kind::kCertificate);
  EXPECT_TRUE((*credentials)->may_leave_host());
}

TEST(CertificateFiles, MissingFileIsNotFound) {
  const TestAuthority authority;
  const CertificateFiles good = authority.worker("job", "a");
  for (std::string CertificateFiles::*file :
       {&CertificateFiles::certificate, &CertificateFiles::key, &CertificateFiles::authority}) {
    CertificateFiles files = good;
    files.*file = "/nowhere/x.pem";
    const absl::Status status = load(files);
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(message(status), AllOf(HasSubstr("cannot open the "),
                                       HasSubstr(" file /nowhere/x.pem: No such file or "
                                                 "directory; create it, or correct SecurityOptions::")));
  }
}

TEST(CertificateFiles, KeyThatOthersMayReadIsRefused) {
  const TestAuthority authority;
  const CertificateFiles files = authority.worker("job", "a");
  for (const mode_t mode : {0604u, 0620u, 0610u, 0644u}) {
    ASSERT_EQ(::chmod(files.key.c_str(), mode), 0);
    const absl::Status status = load(files);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(message(status),
                AllOf(HasSubstr("the key file " + files.key + " can be read or changed by "),
                      HasSubstr(": it has mode 06"), HasSubstr("run: chmod 600 " + files.key)));
  }
  for (const mode_t mode : {0600u, 0400u, 0700u}) {
    ASSERT_EQ(::chmod(files.key.c_str(), mode), 0);
    EXPECT_TRUE(load(files).ok());
  }
}

// Kubernetes makes the files of a secret symbolic links, whose own mode is 0777.
TEST(CertificateFiles, TheModeIsThatOfTheFileBehindASymbolicLink) {
  const TestAuthority authority;
  CertificateFiles files = authority.worker("job", "a");
  const std::string link = files.key + ".link";
  ASSERT_EQ(::symlink(files.key.c_str(), link.c_str()), 0);
  ASSERT_EQ(::chmod(files.key.c_str(), 0644), 0);
  const std::string target = files.key;
  files.key = link;
  EXPECT_TRUE(absl::IsPermissionDenied(load(files)));
  ASSERT_EQ(::chmod(target.c_str(), 0600), 0);
  EXPECT_TRUE(load(files).ok());
}

TEST(CertificateFiles, KeyOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to another user";
  const TestAuthority authority;
  const CertificateFiles files = authority.worker("job", "a");
  ASSERT_EQ(::chown(files.key.c_str(), 12345, 12345), 0);
  const absl::Status status = load(files);
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(message(status),
              AllOf(HasSubstr("the key file " + files.key + " belongs to another user"),
                    HasSubstr("belongs to user 12345 and group 12345, expected user 0"),
                    HasSubstr("run as root: chown 0 " + files.key + " && chmod 600 " + files.key)));
}

TEST(CertificateFiles, SpecialAndHugeFilesAreRefused) {
  const TestAuthority authority;
  const CertificateFiles good = authority.worker("job", "a");
  CertificateFiles files = good;
  files.certificate = files.key + ".fifo";
  ASSERT_EQ(::mkfifo(files.certificate.c_str(), 0600), 0);
  EXPECT_THAT(message(load(files)), HasSubstr("is not a regular file"));
  files = good;
  files.authority = authority.write_file(std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(message(load(files)), HasSubstr("is too large"));
}

TEST(CertificateFiles, KeyOfAnotherCertificateIsRefused) {
  const TestAuthority authority;
  CertificateFiles files = authority.worker("job", "a");
  files.key = authority.worker("job", "b").key;
  const absl::Status status = load(files);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(message(status), HasSubstr("the key file " + files.key + " does not fit the certificate in " +
                                         files.certificate));
}

TEST(CertificateFiles, DatesAreCheckedAgainstThisHostsClock) {
  const TestAuthority authority;
  CertificateFiles files = authority.files({.from = -absl::Hours(2), .until = -absl::Hours(1)});
  EXPECT_THAT(message(load(files)),
              AllOf(HasSubstr("the certificate file " + files.certificate),
                    HasSubstr("\"gradwire://job/a\" has expired"), HasSubstr("it is valid from 20"),
                    HasSubstr("Z until 20"), HasSubstr("this host's clock says 20"),
                    HasSubstr("or this host's clock is wrong")));
  files = authority.files({.from = absl::Hours(1), .until = absl::Hours(2)});
  EXPECT_THAT(message(load(files)),
              AllOf(HasSubstr("is not valid yet"), HasSubstr("or this host's clock is wrong")));
}

TEST(CertificateFiles, AnotherAuthorityIsRefused) {
  const TestAuthority authority("Ours");
  const TestAuthority other("Other");
  CertificateFiles files = authority.worker("job", "a");
  files.authority = other.worker("job", "b").authority;
  const absl::Status status = load(files);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(message(status), AllOf(HasSubstr(files.certificate),
                                     HasSubstr("is not signed by the authority in " + files.authority),
                                     HasSubstr("its issuer is \"/CN=Ours\"")));
}

// Only the signatures of the two authorities differ.
TEST(CertificateFiles, AnotherAuthorityOfTheSameNameIsRefused) {
  const TestAuthority authority;
  const TestAuthority other;
  CertificateFiles files = authority.worker("job", "a");
  files.authority = other.worker("job", "b").authority;
  EXPECT_THAT(message(load(files)), HasSubstr("is not signed by the authority in " + files.authority));
}

TEST(CertificateFiles, CertificateWithoutTheRightToSignCannotBeTheAuthority) {
  const TestAuthority authority;
  CertificateFiles files = authority.worker("job", "a");
  files.authority = files.certificate;
  EXPECT_THAT(message(load(files)),
              AllOf(HasSubstr("the authority file " + files.authority), HasSubstr("may not sign others")));
}

TEST(CertificateFiles, IntermediateAuthorityCanBeTheAuthority) {
  const TestAuthority root;
  const std::unique_ptr<TestAuthority> intermediate = root.intermediate();
  EXPECT_TRUE(load(intermediate->worker("job", "a")).ok());
  // Without the intermediate certificate the chain is incomplete.
  const CertificateFiles files = root.write(intermediate->issue({.uris = {"gradwire://job/a"}}), root.pem());
  EXPECT_THAT(message(load(files)), HasSubstr("is not signed by the authority"));
}

TEST(CertificateFiles, OneWorkerMustBeNamed) {
  const TestAuthority authority;
  const auto with = [&authority](const std::vector<std::string>& uris) {
    return message(load(authority.write(authority.issue({.uris = uris}), authority.pem())));
  };
  EXPECT_THAT(with({}), HasSubstr("names no worker: expected one subject alternative name"));
  EXPECT_THAT(with({"https://job/a"}), HasSubstr("names no worker"));
  EXPECT_THAT(with({"gradwire://job/a", "gradwire://job/b"}), HasSubstr("names several workers"));
  for (const std::string& uri :
       {std::string("gradwire://job"), std::string("gradwire:///a"), std::string("gradwire://job/"),
        std::string("gradwire://job/a/b"), std::string("gradwire://job/a?b"),
        std::string("gradwire://j%6fb/a"), std::string("gradwire://job/a b"),
        "gradwire://job/" + std::string(129, 'a')}) {
    EXPECT_THAT(with({uri}), HasSubstr("has a malformed subject alternative name: got \"gradwire://")) << uri;
  }
  EXPECT_EQ(with({"gradwire://job/a", "https://job/b"}), "");
}

TEST(CertificateFiles, RoleOfAServerAloneDoesNotSuffice) {
  const TestAuthority authority;
  EXPECT_THAT(message(load(authority.files({.only_server = true}))),
              HasSubstr("both serverAuth and clientAuth"));
}

TEST(CertificateFiles, WeakKeyIsRefused) {
  const TestAuthority authority;
  EXPECT_THAT(message(load(authority.files({.key = TestAuthority::KeyType::kRsa1024}))),
              HasSubstr("is too weak"));
}

TEST(CertificateFiles, MalformedPemIsRefused) {
  const TestAuthority authority;
  const CertificateFiles good = authority.worker("job", "a");
  const std::string certificate = read_text(good.certificate);
  for (const std::string& text : {std::string(), std::string("hello"),
                                  certificate.substr(0, certificate.size() / 2), read_text(good.key)}) {
    CertificateFiles files = good;
    files.certificate = authority.write_file(text);
    EXPECT_TRUE(absl::IsInvalidArgument(load(files))) << text << load(files);
    EXPECT_THAT(message(load(files)), HasSubstr("the certificate file " + files.certificate));
    files = good;
    files.authority = authority.write_file(text);
    EXPECT_THAT(message(load(files)), HasSubstr("the authority file " + files.authority));
  }
  for (const std::string& text : {std::string(), std::string("hello"), certificate}) {
    CertificateFiles files = good;
    files.key = authority.write_file(text);
    EXPECT_THAT(message(load(files)), HasSubstr("the key file " + files.key + " has no private key"));
  }
  CertificateFiles files = good;
  files.key = authority.write_file(
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGjMF8GCSqGSIb3\n-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(message(load(files)), HasSubstr("is encrypted with a passphrase"));
}

}  // namespace
}  // namespace gradwire::security
