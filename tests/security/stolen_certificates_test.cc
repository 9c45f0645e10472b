// An attacker with a certificate that is not, or no longer, one of the job's members. It uses OpenSSL itself,
// because Gradwire would refuse to start with such files.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/raw_peer.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tests/security/protection.h"
#include "gradwire/tests/security/raw_socket.h"
#include "gradwire/transport/tcp/wire/preface.h"

namespace gradwire {
namespace {

using security::RawPeer;
using security::TestAuthority;
using transport::Preface;

// Connects to the store with this certificate. Returns whether the store has welcomed the attacker.
bool gets_in(int port, const TestAuthority::Pem* pem, const std::string& purpose = "store") {
  RawSocket socket = RawSocket::connect(port);
  socket.send(Preface{.proof = Preface::Proof::kCertificate, .token = transport::random_token()}.encode());
  RawPeer peer(RawPeer::Role::kClient, socket.get(), pem);
  peer.protocol = "gradwire-" + purpose + "/1";
  bool done = false;
  // A read blocks until the store says something, or closes. The handshake needs a few of them.
  for (int i = 0; i < 20; ++i) {
    done = done || peer.step();
    if (done && peer.welcome()) return true;
    char byte;
    if (::recv(socket.get(), &byte, 1, MSG_PEEK) <= 0) return false;
  }
  return false;
}

class StolenCertificates : public ::testing::Test {
 protected:
  store::TcpStore store_{
      "127.0.0.1", 0, {.is_master = true, .security = options_of(job_authority().worker("job", "store"))}};
};

TEST_F(StolenCertificates, OfAMemberLetsItIn) {
  const TestAuthority::Pem good = job_authority().issue({.uris = {"gradwire://job/member"}});
  EXPECT_TRUE(gets_in(store_.port(), &good)) << "the other tests of this file show nothing";
}

TEST_F(StolenCertificates, AreWorthNothingOnceTheyHaveExpired) {
  const TestAuthority::Pem expired = job_authority().issue(
      {.uris = {"gradwire://job/member"}, .from = -absl::Hours(2), .until = -absl::Seconds(2)});
  EXPECT_FALSE(gets_in(store_.port(), &expired));
}

TEST_F(StolenCertificates, AreWorthNothingBeforeTheirTime) {
  const TestAuthority::Pem early = job_authority().issue(
      {.uris = {"gradwire://job/member"}, .from = absl::Minutes(10), .until = absl::Hours(2)});
  EXPECT_FALSE(gets_in(store_.port(), &early));
}

TEST_F(StolenCertificates, OfAnotherJobAreWorthNothing) {
  const TestAuthority::Pem other = job_authority().issue({.uris = {"gradwire://other/member"}});
  EXPECT_FALSE(gets_in(store_.port(), &other));
}

TEST_F(StolenCertificates, OfAnotherAuthorityAreWorthNothing) {
  const TestAuthority stranger;
  const TestAuthority::Pem other = stranger.issue({.uris = {"gradwire://job/member"}});
  EXPECT_FALSE(gets_in(store_.port(), &other));
}

TEST_F(StolenCertificates, WithoutTheRightNameAreWorthNothing) {
  for (const std::vector<std::string>& uris :
       std::vector<std::vector<std::string>>{{},
                                             {"https://job/member"},
                                             {"gradwire://job/"},
                                             {"gradwire://job/a", "gradwire://job/b"},
                                             {"gradwire://job/member", "gradwire://other/member"}}) {
    const TestAuthority::Pem pem = job_authority().issue({.uris = uris});
    EXPECT_FALSE(gets_in(store_.port(), &pem)) << (uris.empty() ? "no name" : uris[0]);
  }
}

TEST_F(StolenCertificates, WithoutTheKeyAreWorthNothing) {
  TestAuthority::Pem mixed = job_authority().issue({.uris = {"gradwire://job/member"}});
  mixed.key = job_authority().issue({.uris = {"gradwire://job/other"}}).key;
  EXPECT_FALSE(gets_in(store_.port(), &mixed));
}

TEST_F(StolenCertificates, NoCertificateIsNotEnough) { EXPECT_FALSE(gets_in(store_.port(), nullptr)); }

TEST_F(StolenCertificates, ForAnotherPurposeAreWorthNothing) {
  const TestAuthority::Pem good = job_authority().issue({.uris = {"gradwire://job/member"}});
  EXPECT_FALSE(gets_in(store_.port(), &good, "rpc"));
  EXPECT_FALSE(gets_in(store_.port(), &good, "group"));
}

}  // namespace
}  // namespace gradwire
