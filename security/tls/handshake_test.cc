#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/handshake_fixture.h"

namespace gradwire::security {
namespace {

using KeyType = TestAuthority::KeyType;
using ::testing::AllOf;
using ::testing::HasSubstr;

CredentialsPtr credentials(const CertificateFiles& files) {
  absl::StatusOr<CredentialsPtr> made = make_certificate_credentials(files);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

struct TwoWorkers {
  TestAuthority authority;
  CertificateFiles a = authority.worker("job", "a");
  CertificateFiles b = authority.worker("job", "b");
};

TEST(TlsHandshake, BothEndsLearnTheWorkerInTheOthersCertificate) {
  for (const KeyType key : {KeyType::kP256, KeyType::kEd25519, KeyType::kRsa2048}) {
    const TestAuthority authority;
    const CredentialsPtr a = credentials(authority.files({.uris = {"gradwire://job/a"}, .key = key}));
    const CredentialsPtr b =
        credentials(authority.files({.uris = {"gradwire://job/b", "https://b"}, .key = key}));
    Ends ends(a, b);
    ends.run();
    ASSERT_TRUE(ends.done()) << ends.client_error() << ends.server_error();
    EXPECT_EQ(ends.client->peer().proof, PeerIdentity::Proof::kCertificate);
    EXPECT_EQ(ends.client->peer().job, "job");
    EXPECT_EQ(ends.client->peer().name, "b");
    EXPECT_EQ(ends.server->peer().proof, PeerIdentity::Proof::kCertificate);
    EXPECT_EQ(ends.server->peer().job, "job");
    EXPECT_EQ(ends.server->peer().name, "a");
    EXPECT_NE(ends.client->take_stream(), nullptr);
    EXPECT_EQ(ends.client->take_stream(), nullptr);
  }
}

TEST(TlsHandshake, IntermediateAuthoritiesInTheCertificateFileAreSent) {
  const TestAuthority root;
  const std::unique_ptr<TestAuthority> intermediate = root.intermediate();
  TestAuthority::Pem pem = intermediate->issue({.uris = {"gradwire://job/deep"}});
  pem.certificate += intermediate->pem();
  Ends ends(credentials(root.write(pem, root.pem())), credentials(root.worker("job", "b")));
  ends.run();
  ASSERT_TRUE(ends.done()) << ends.client_error() << ends.server_error();
  EXPECT_EQ(ends.server->peer().name, "deep");
}

TEST(TlsHandshake, TwoAuthoritiesInTheFileServeWhileOneReplacesTheOther) {
  const TestAuthority old_authority;
  const TestAuthority new_authority("New authority");
  const std::string both = old_authority.pem() + new_authority.pem();
  Ends ends(credentials(old_authority.write(old_authority.issue({.uris = {"gradwire://job/a"}}), both)),
            credentials(new_authority.write(new_authority.issue({.uris = {"gradwire://job/b"}}), both)));
  ends.run();
  EXPECT_TRUE(ends.done()) << ends.client_error() << ends.server_error();
}

TEST(TlsHandshake, AnotherPurposeIsRefusedAtBothEnds) {
  const TwoWorkers workers;
  Ends ends(credentials(workers.a), credentials(workers.b), "store", "rpc");
  ends.run();
  EXPECT_TRUE(absl::IsUnauthenticated(ends.client_result.status()));
  EXPECT_TRUE(absl::IsUnauthenticated(ends.server_result.status()));
  EXPECT_THAT(
      ends.client_error(),
      HasSubstr("TLS with server:1 failed: the peer does not serve connections of the purpose \"store\""));
  EXPECT_THAT(ends.server_error(),
              AllOf(HasSubstr("TLS with client:2 failed: the peer wants a connection of another "
                              "purpose: got \"gradwire-store/1\", expected \"gradwire-rpc/1\"")));
}

TEST(TlsHandshake, AnotherJobIsRefusedAtBothEnds) {
  const TestAuthority authority;
  const CertificateFiles files = authority.worker("mine", "a");
  Ends ends(credentials(files), credentials(authority.worker("yours", "b")));
  ends.run();
  EXPECT_TRUE(absl::IsUnauthenticated(ends.client_result.status()));
  EXPECT_TRUE(absl::IsUnauthenticated(ends.server_result.status()));
  EXPECT_THAT(
      ends.client_error(),
      HasSubstr("the peer belongs to another job: got \"gradwire://yours/b\", expected the job \"mine\""));
  EXPECT_THAT(ends.server_error(), AllOf(HasSubstr("the peer refused this process's certificate "
                                                   "\"gradwire://yours/b\" in"),
                                         HasSubstr("it belongs to another job")));
}

TEST(TlsHandshake, AnotherAuthorityIsRefusedAtBothEnds) {
  const TestAuthority ours("Ours");
  const TestAuthority theirs("Theirs");
  const CertificateFiles client = ours.worker("job", "a");
  const CertificateFiles server = theirs.worker("job", "b");
  Ends ends(credentials(client), credentials(server));
  ends.run();
  EXPECT_THAT(
      ends.client_error(),
      AllOf(HasSubstr("the peer's certificate \"gradwire://job/b\" is not signed by the authority in " +
                      client.authority),
            HasSubstr("/CN=Theirs")));
  EXPECT_THAT(ends.server_error(),
              AllOf(HasSubstr("the peer refused this process's certificate"), HasSubstr(server.certificate),
                    HasSubstr("/CN=Theirs"), HasSubstr("is not in the peer's authority file")));
}

// The server finds the mistake after the client has finished its part of TLS: the welcome makes the client
// wait for the verdict.
TEST(TlsHandshake, TheServersRefusalReachesTheClientDuringTheHandshake) {
  const TestAuthority ours("Ours");
  const TestAuthority theirs("Theirs");
  const CertificateFiles client =
      ours.write(ours.issue({.uris = {"gradwire://job/a"}}), ours.pem() + theirs.pem());
  Ends ends(credentials(client), credentials(theirs.worker("job", "b")));
  ends.run();
  EXPECT_TRUE(absl::IsUnauthenticated(ends.client_result.status()));
  EXPECT_THAT(ends.client_error(), AllOf(HasSubstr("the peer refused this process's certificate "
                                                   "\"gradwire://job/a\" in " +
                                                   client.certificate),
                                         HasSubstr("is not in the peer's authority file")));
  EXPECT_THAT(ends.server_error(), HasSubstr("is not signed by the authority"));
}

TEST(TlsHandshake, TheEndOfThePeerIsUnavailable) {
  const TwoWorkers workers;
  Ends ends(credentials(workers.a), credentials(workers.b));
  ends.client_result = ends.client->step();
  ends.sockets.server.reset();
  ends.run();
  EXPECT_TRUE(absl::IsUnavailable(ends.client_result.status())) << ends.client_result.status();
  EXPECT_THAT(ends.client_error(), HasSubstr("the peer closed the connection during the handshake"));
  // The error remains.
  EXPECT_EQ(ends.client->step().status(), ends.client_result.status());
}

// An owner that waits for the socket to become readable would wait in vain for bytes that the handshake took.
TEST(TlsHandshake, ReadsNoByteBehindTheHandshake) {
  const TwoWorkers workers;
  Ends ends(credentials(workers.a), credentials(workers.b));
  for (int i = 0; i < 10 && !Ends::finished(ends.server_result); ++i) {
    ends.client_result = ends.client->step();
    ends.server_result = ends.server->step();
  }
  ASSERT_TRUE(ends.server_result.ok());
  ASSERT_TRUE(ends.client_result.ok());
  ASSERT_FALSE(Ends::finished(ends.client_result));
  // The server's first bytes arrive together with the end of the handshake.
  const std::shared_ptr<SecureStream> server = ends.server->take_stream();
  const iovec piece{const_cast<char*>("hello"), 5};
  ASSERT_EQ(server->write({&piece, 1}), 5);
  ends.client_result = ends.client->step();
  ASSERT_TRUE(ends.done());
  std::string wire(1000, '\0');
  EXPECT_EQ(::recv(ends.sockets.client.get(), wire.data(), wire.size(), MSG_PEEK), 5 + 22);
  const std::shared_ptr<SecureStream> client = ends.client->take_stream();
  const iovec place{wire.data(), wire.size()};
  EXPECT_EQ(client->read({&place, 1}), 5);
}

TEST(TlsHandshake, WaitsForRoomInTheSocket) {
  const TwoWorkers workers;
  Ends ends(credentials(workers.a), credentials(workers.b));
  // Nothing can be sent: the peer does not read, and the socket is full.
  const std::string noise(4096, 'x');
  ssize_t sent = 0;
  size_t filled = 0;
  while ((sent = ::send(ends.sockets.client.get(), noise.data(), noise.size(), 0)) > 0) {
    filled += static_cast<size_t>(sent);
  }
  ends.client_result = ends.client->step();
  ASSERT_TRUE(ends.client_result.ok());
  EXPECT_EQ(*ends.client_result, SocketHandshake::Progress::kToWrite);
  std::string read(filled, '\0');
  ASSERT_EQ(::recv(ends.sockets.server.get(), read.data(), filled, MSG_WAITALL), filled);
  ends.run();
  EXPECT_TRUE(ends.done()) << ends.client_error() << ends.server_error();
}

}  // namespace
}  // namespace gradwire::security
