#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/tls/handshake_fixture.h"
#include "gradwire/security/tls/raw_peer.h"

namespace gradwire::security {
namespace {

using Pem = TestAuthority::Pem;
using Progress = SocketHandshake::Progress;
using Role = RawPeer::Role;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TestAuthority& authority() {
  static TestAuthority made;
  return made;
}

CredentialsPtr own_credentials() {
  static const CredentialsPtr made = *make_certificate_credentials(authority().worker("job", "own"));
  return made;
}

const Pem& good_pem() {
  static const Pem made = authority().issue({.uris = {"gradwire://job/raw"}});
  return made;
}

// One end of Gradwire's, and a raw peer in the other role.
struct Attacked {
  explicit Attacked(Role role, const Pem* pem = &good_pem()) : raw(role, sockets.client.get(), pem) {
    own = role == Role::kClient ? own_credentials()->accepted(sockets.server.get(), {"rpc", "", "raw:9"})
                                : own_credentials()->connected(sockets.server.get(), {"rpc", "", "raw:9"});
  }

  // Runs the handshake until the own end is done or has failed, and returns its error.
  std::string run() {
    for (int i = 0; i < 100; ++i) {
      if (!raw_done) raw_done = raw.step();
      if (raw_done && !welcomed) welcomed = raw.welcome();
      result = own->step();
      if (Ends::finished(result)) break;
    }
    if (result.ok()) {
      EXPECT_TRUE(*result == Progress::kDone) << "the handshake does not end";
      if (!welcomed) welcomed = raw.welcome();
      stream = own->take_stream();
    }
    return std::string(result.status().message());
  }

  SocketPair sockets;
  RawPeer raw;
  bool raw_done = false;
  bool welcomed = false;
  std::unique_ptr<SocketHandshake> own;
  Ends::Result result = Progress::kToRead;
  std::shared_ptr<SecureStream> stream;
};

// The error that one end of Gradwire's reports after these bytes and the end of the connection.
absl::Status error_after(Role attacker, const std::string& bytes) {
  SocketPair sockets;
  const std::unique_ptr<SocketHandshake> own =
      attacker == Role::kClient ? own_credentials()->accepted(sockets.server.get(), {"rpc", "", "raw:9"})
                                : own_credentials()->connected(sockets.server.get(), {"rpc", "", "raw:9"});
  const absl::StatusOr<Progress> first = own->step();
  EXPECT_TRUE(first.ok() && *first == Progress::kToRead) << first.status();
  EXPECT_EQ(::send(sockets.client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), bytes.size());
  EXPECT_EQ(::shutdown(sockets.client.get(), SHUT_WR), 0);
  return own->step().status();
}

std::string message_after(Role attacker, const std::string& bytes) {
  const absl::Status status = error_after(attacker, bytes);
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  return std::string(status.message());
}

ssize_t read(SecureStream& stream, size_t size = 100'000) {
  std::string text(size, '\0');
  const iovec place{text.data(), text.size()};
  return stream.read({&place, 1});
}

TEST(HostileTls, RawPeerThatFollowsTheRulesIsAccepted) {
  for (const Role role : {Role::kClient, Role::kServer}) {
    Attacked attacked(role);
    EXPECT_EQ(attacked.run(), "");
    ASSERT_TRUE(attacked.welcomed);
    EXPECT_EQ(attacked.own->peer().name, "raw");
  }
}

TEST(HostileTls, PeerWithoutACertificateIsRefused) {
  Attacked attacked(Role::kClient, nullptr);
  EXPECT_THAT(attacked.run(), HasSubstr("TLS with raw:9 failed: the peer has no certificate"));
  EXPECT_TRUE(absl::IsUnauthenticated(attacked.result.status()));
}

TEST(HostileTls, OldVersionsOfTlsAreRefused) {
  for (const Role role : {Role::kClient, Role::kServer}) {
    for (const int version : {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION}) {
      Attacked attacked(role);
      SSL_CTX_set_min_proto_version(attacked.raw.context(), TLS1_VERSION);
      SSL_CTX_set_max_proto_version(attacked.raw.context(), version);
      EXPECT_THAT(attacked.run(), HasSubstr("speaks only versions of TLS older than 1.3")) << version;
      EXPECT_TRUE(absl::IsUnauthenticated(attacked.result.status()));
    }
  }
}

TEST(HostileTls, PeerThatStatesNoPurposeIsRefused) {
  Attacked client(Role::kClient);
  client.raw.protocol.clear();
  EXPECT_THAT(client.run(), HasSubstr("does not say the purpose of the connection: got \"\", expected "
                                      "\"gradwire-rpc/1\""));
  Attacked server(Role::kServer);
  SSL_CTX_set_alpn_select_cb(server.raw.context(), nullptr, nullptr);
  EXPECT_THAT(server.run(), HasSubstr("does not say the purpose of the connection"));
}

// Certificates that Gradwire would not show itself, in both roles.
TEST(HostileTls, BadCertificatesOfThePeerAreRefused) {
  const TestAuthority other("Other");
  const std::string name = "gradwire://job/raw";
  const std::vector<std::pair<Pem, std::string>> cases = {
      {authority().issue({.uris = {name}, .from = -absl::Hours(2), .until = -absl::Hours(1)}),
       "the peer's certificate \"gradwire://job/raw\" has expired: it is valid from 20"},
      {authority().issue({.uris = {name}, .from = absl::Hours(1), .until = absl::Hours(2)}),
       "the peer's certificate \"gradwire://job/raw\" is not valid yet: it is valid from 20"},
      {authority().issue({}), "the peer's certificate names no worker"},
      {authority().issue({.uris = {name, name}}), "the peer's certificate names several workers"},
      {authority().issue({.uris = {"gradwire://job/a/b"}}), "the peer's certificate has a malformed subject"},
      {authority().issue({.uris = {"gradwire://job2/raw"}}),
       "the peer belongs to another job: got "
       "\"gradwire://job2/raw\", expected the job \"job\""},
      {authority().issue({.uris = {"gradwire://jot/raw"}}),
       "the peer belongs to another job: got \"gradwire://jot/raw\", expected the job \"job\""},
      {other.issue({.uris = {name}}), "is not signed by the authority in "},
      {authority().issue({.uris = {name}, .key = TestAuthority::KeyType::kRsa1024}), "is too weak"}};
  for (const auto& [pem, expected] : cases) {
    for (const Role role : {Role::kClient, Role::kServer}) {
      Attacked attacked(role, &pem);
      EXPECT_THAT(attacked.run(), AllOf(HasSubstr("TLS with raw:9 failed: "), HasSubstr(expected)));
      EXPECT_TRUE(absl::IsUnauthenticated(attacked.result.status()));
    }
  }
  // A certificate for servers only.
  const Pem server = authority().issue({.uris = {name}, .only_server = true});
  Attacked attacked(Role::kClient, &server);
  EXPECT_THAT(attacked.run(), HasSubstr("excludes one of the roles"));
}

TEST(HostileTls, AlertsOfThePeerAreExplained) {
  const std::string own = "this process's certificate \"gradwire://job/own\" in /";
  const std::vector<std::pair<int, std::string>> cases = {
      {SSL_AD_CERTIFICATE_REQUIRED, "the peer received no certificate"},
      {SSL_AD_UNKNOWN_CA, "the peer refused " + own},
      {SSL_AD_CERTIFICATE_EXPIRED, "the peer refused " + own},
      {SSL_AD_BAD_CERTIFICATE, "the peer refused " + own},
      {SSL_AD_CERTIFICATE_UNKNOWN, "the peer refused " + own},
      {120, "the peer does not serve connections of the purpose \"rpc\""},
      {SSL_AD_PROTOCOL_VERSION, "the peer speaks only versions of TLS older than 1.3"},
      {SSL_AD_HANDSHAKE_FAILURE, "the peer shares no cipher"},
      {SSL_AD_INTERNAL_ERROR, "the peer ended the connection with the TLS alert \"internal error\""},
      {200, "the peer ended the connection with the TLS alert"}};
  for (const auto& [alert, expected] : cases) {
    const std::string record = {0x15, 3, 3, 0, 2, 2, static_cast<char>(alert)};
    EXPECT_THAT(message_after(Role::kServer, record), HasSubstr("TLS with raw:9 failed: " + expected));
    // A client's alert follows its first message.
    Attacked attacked(Role::kClient);
    attacked.raw.step();
    ASSERT_TRUE(attacked.own->step().ok());
    ASSERT_EQ(::send(attacked.sockets.client.get(), record.data(), record.size(), MSG_NOSIGNAL),
              record.size());
    EXPECT_THAT(std::string(attacked.own->step().status().message()),
                HasSubstr("TLS with raw:9 failed: " + expected));
  }
  EXPECT_THAT(message_after(Role::kServer, {0x15, 3, 3, 0, 2, 2, SSL_AD_UNKNOWN_CA}),
              HasSubstr("its authority \"/CN=Test authority\" is not in the peer's authority file"));
  EXPECT_THAT(message_after(Role::kServer, {0x15, 3, 3, 0, 2, 2, SSL_AD_CERTIFICATE_EXPIRED}),
              HasSubstr("it has expired by the peer's clock: it is valid until 20"));
}

TEST(HostileTls, PeerThatDoesNotSpeakTlsIsNamed) {
  const std::string refusal = "this port demands a token";
  for (const Role role : {Role::kClient, Role::kServer}) {
    EXPECT_THAT(message_after(role, "GET / HTTP/1.1\r\n"),
                HasSubstr("its first bytes are \"GET / HTTP/1.1\\r\\n\""));
    EXPECT_THAT(message_after(role, std::string("GWa1\5\0", 6) + static_cast<char>(refusal.size()) +
                                        std::string(1, '\0') + refusal),
                HasSubstr("the peer refused the connection: this port demands a token"));
    EXPECT_TRUE(absl::IsUnavailable(error_after(role, "")));
  }
}

TEST(HostileTls, EndlessHandshakeIsRefused) {
  for (const Role role : {Role::kClient, Role::kServer}) {
    SocketPair sockets;
    const std::unique_ptr<SocketHandshake> own =
        role == Role::kClient ? own_credentials()->accepted(sockets.server.get(), {"rpc", "", "raw:9"})
                              : own_credentials()->connected(sockets.server.get(), {"rpc", "", "raw:9"});
    // Records of one byte: a message of 16 MiB begins.
    std::string bytes = {0x16, 3, 1, 0, 4, static_cast<char>(role == Role::kClient ? 1 : 11), 1, 0, 0};
    for (int i = 0; i < 1000; ++i) bytes += std::string({0x16, 3, 3, 0, 1, 0});
    absl::StatusOr<Progress> result = Progress::kToRead;
    size_t sent = 0;
    while (result.ok() && sent < (size_t{1} << 24)) {
      const ssize_t count = ::send(sockets.client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count > 0) sent += static_cast<size_t>(count);
      result = own->step();
    }
    EXPECT_TRUE(absl::IsUnauthenticated(result.status())) << result.status();
    EXPECT_LT(sent, size_t{1} << 20);
  }
}

TEST(HostileTls, HugeCertificateIsRefused) {
  Pem pem = good_pem();
  for (const Role role : {Role::kClient, Role::kServer}) {
    Attacked attacked(role, &pem);
    const TestAuthority many;
    for (int i = 0; i < 300; ++i) {
      const BioPtr bio(BIO_new_mem_buf(many.pem().data(), static_cast<int>(many.pem().size())));
      SSL_CTX_add0_chain_cert(attacked.raw.context(),
                              PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    }
    EXPECT_THAT(attacked.run(), HasSubstr("TLS with raw:9 failed: the peer sent a message over the limit"));
  }
}

// Each message is within the limits of OpenSSL. Without the welcome the handshake does not end.
TEST(HostileTls, PaddedMessagesBeforeTheWelcomeAreBounded) {
  Attacked attacked(Role::kServer);
  for (int i = 0; i < 100 && !attacked.raw_done; ++i) {
    attacked.result = attacked.own->step();
    attacked.raw_done = attacked.raw.step();
  }
  ASSERT_TRUE(attacked.raw_done);
  ASSERT_EQ(SSL_set_block_padding(attacked.raw.ssl(), SSL3_RT_MAX_PLAIN_LENGTH), 1);
  for (int i = 0; i < 20 && attacked.result.ok(); ++i) {
    ASSERT_EQ(SSL_key_update(attacked.raw.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
    ASSERT_TRUE(attacked.raw.step());
    attacked.result = attacked.own->step();
  }
  EXPECT_TRUE(absl::IsUnauthenticated(attacked.result.status())) << attacked.result.status();
  EXPECT_THAT(std::string(attacked.result.status().message()),
              HasSubstr("TLS with raw:9 failed: the peer's handshake is too long: expected at most 131072 "
                        "bytes; shorten its certificate file"));
}

TEST(HostileTls, GarbageInTheStreamFailsItForBothThreads) {
  // A record over the limit, a record with a wrong MAC, plain text, and an unencrypted alert.
  const std::vector<std::string> garbage = {std::string("\x17\x03\x03\xff\xff", 5) + std::string(1000, 'x'),
                                            std::string("\x17\x03\x03\x00\x20", 5) + std::string(32, 'x'),
                                            "plain text, not TLS",
                                            std::string("\x15\x03\x03\x00\x02\x02\x28", 7)};
  for (const std::string& bytes : garbage) {
    for (const Role role : {Role::kClient, Role::kServer}) {
      Attacked attacked(role);
      ASSERT_EQ(attacked.run(), "");
      ASSERT_EQ(::send(attacked.sockets.client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                bytes.size());
      errno = 0;
      EXPECT_EQ(read(*attacked.stream), -1);
      EXPECT_EQ(errno, EPROTO);
      EXPECT_THAT(std::string(attacked.stream->failure().message()), HasSubstr("TLS with raw:9 failed: "));
      const iovec piece{const_cast<char*>("x"), 1};
      errno = 0;
      EXPECT_EQ(attacked.stream->write({&piece, 1}), -1);
      EXPECT_EQ(errno, EPROTO);
    }
  }
}

TEST(HostileTls, FloodOfNewKeysEndsTheStream) {
  for (const int kind : {SSL_KEY_UPDATE_NOT_REQUESTED, SSL_KEY_UPDATE_REQUESTED}) {
    Attacked attacked(Role::kClient);
    ASSERT_EQ(attacked.run(), "");
    ASSERT_TRUE(attacked.welcomed);
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(SSL_key_update(attacked.raw.ssl(), kind), 1);
      ASSERT_TRUE(attacked.raw.step());
    }
    errno = 0;
    EXPECT_EQ(read(*attacked.stream), -1);
    EXPECT_EQ(errno, EPROTO);
    EXPECT_THAT(std::string(attacked.stream->failure().message()),
                HasSubstr("the peer sent more than 32 records"));
  }
}

TEST(HostileTls, FewNewKeysAreFine) {
  Attacked attacked(Role::kClient);
  ASSERT_EQ(attacked.run(), "");
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(SSL_key_update(attacked.raw.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
      ASSERT_TRUE(attacked.raw.step());
    }
    ASSERT_EQ(SSL_write(attacked.raw.ssl(), "data", 4), 4);
    ASSERT_TRUE(attacked.raw.send());
    EXPECT_EQ(read(*attacked.stream), 4) << attacked.stream->failure();
    const iovec piece{const_cast<char*>("answer"), 6};
    EXPECT_EQ(attacked.stream->write({&piece, 1}), 6);
  }
}

// Each request for new keys costs this end an answer, which waits for the next write.
TEST(HostileTls, RequestsForNewKeysBetweenDataAreBounded) {
  Attacked attacked(Role::kClient);
  ASSERT_EQ(attacked.run(), "");
  ssize_t count = 0;
  int rounds = 0;
  for (; count >= 0 && rounds < 1000; ++rounds) {
    ASSERT_EQ(SSL_key_update(attacked.raw.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
    ASSERT_EQ(SSL_write(attacked.raw.ssl(), "d", 1), 1);
    ASSERT_TRUE(attacked.raw.send());
    count = read(*attacked.stream);
  }
  EXPECT_LT(rounds, 1000);
  EXPECT_THAT(std::string(attacked.stream->failure().message()), HasSubstr("asks for new keys too often"));
}

TEST(HostileTls, TinyRecordsDoNotHoldTheReadingThread) {
  Attacked attacked(Role::kClient);
  ASSERT_EQ(attacked.run(), "");
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(SSL_write(attacked.raw.ssl(), "d", 1), 1);
  ASSERT_TRUE(attacked.raw.send());
  ssize_t total = 0;
  while (total < 2000) {
    const ssize_t count = read(*attacked.stream);
    ASSERT_GT(count, 0);
    ASSERT_LE(count, 512);
    total += count;
  }
}

// A server that asks for a certificate again, and sessions, after the handshake.
TEST(HostileTls, UnexpectedMessagesAfterTheHandshakeAreBounded) {
  Attacked attacked(Role::kServer);
  SSL_CTX_set_options(attacked.raw.context(), SSL_OP_NO_TICKET);
  ASSERT_EQ(attacked.run(), "");
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(SSL_new_session_ticket(attacked.raw.ssl()), 1);
    attacked.raw.step();
  }
  errno = 0;
  EXPECT_EQ(read(*attacked.stream), -1);
  EXPECT_EQ(errno, EPROTO);
}

TEST(HostileTls, GarbageAtEveryStageOfTheHandshakeIsRefused) {
  // 1. Record what each end sends in a good handshake.
  // 2. In another one, cut the attacker's bytes at each of many places, and go on with garbage.
  for (const Role role : {Role::kClient, Role::kServer}) {
    for (size_t cut = 0; cut < 1200; cut += 37) {
      SocketPair outer;  // the attacked end and the attacker
      SocketPair inner;  // the attacker and an honest end
      const std::unique_ptr<SocketHandshake> honest =
          role == Role::kClient ? own_credentials()->connected(inner.client.get(), {"rpc", "", "honest"})
                                : own_credentials()->accepted(inner.client.get(), {"rpc", "", "honest"});
      const std::unique_ptr<SocketHandshake> attacked =
          role == Role::kClient ? own_credentials()->accepted(outer.server.get(), {"rpc", "", "raw:9"})
                                : own_credentials()->connected(outer.server.get(), {"rpc", "", "raw:9"});
      absl::StatusOr<Progress> result = Progress::kToRead;
      size_t passed = 0;
      bool spoiled = false;
      std::mt19937 random(static_cast<unsigned>(cut));
      for (int i = 0; i < 50 && !Ends::finished(result); ++i) {
        const absl::StatusOr<Progress> ignored = honest->step();
        char bytes[4096];
        const ssize_t forth = ::recv(inner.server.get(), bytes, sizeof(bytes), 0);
        for (ssize_t at = 0; at < forth; ++at, ++passed) {
          if (passed >= cut) bytes[at] = static_cast<char>(random());
        }
        if (forth > 0) {
          spoiled = spoiled || passed > cut;
          ASSERT_EQ(::send(outer.client.get(), bytes, static_cast<size_t>(forth), MSG_NOSIGNAL), forth);
        }
        result = attacked->step();
        const ssize_t back = ::recv(outer.client.get(), bytes, sizeof(bytes), 0);
        if (back > 0) {
          ASSERT_EQ(::send(inner.server.get(), bytes, static_cast<size_t>(back), MSG_NOSIGNAL), back);
        }
      }
      if (spoiled) {
        EXPECT_FALSE(result.ok() && *result == Progress::kDone) << cut;
        if (!result.ok()) {
          EXPECT_TRUE(absl::IsUnauthenticated(result.status()) || absl::IsUnavailable(result.status()));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::security
