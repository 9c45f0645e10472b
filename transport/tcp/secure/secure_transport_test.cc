// Tests what credentials allow and demand, between two tcp transports.

#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/tcp/secure/fake_credentials.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::Credentials;
using security::CredentialsPtr;
using security::PeerIdentity;

CredentialsPtr token_credentials(absl::string_view text = "0123456789abcdef0123456789abcdef") {
  return *security::make_token_credentials(security::Secret(text), /*check_addresses=*/true);
}

CredentialsPtr certificates(const std::string& name) {
  static const security::TestAuthority authority;
  return *security::make_certificate_credentials(authority.worker("job", name));
}

TcpOptions options_with(CredentialsPtr credentials, std::string name = "", std::string purpose = "test") {
  TcpOptions options;
  options.credentials = std::move(credentials);
  options.own_name = std::move(name);
  options.purpose = std::move(purpose);
  return options;
}

std::shared_ptr<ConnectionListener> refuse(const std::shared_ptr<Connection>&) { return nullptr; }

class SecureTcp : public ::testing::Test {
 protected:
  ~SecureTcp() override {
    if (client_ != nullptr) client_->shutdown();
    if (server_ != nullptr) server_->shutdown();
  }

  void listen(TcpOptions options) {
    if (options.bind_address.empty()) options.bind_address = "127.0.0.1";
    server_ = make_tcp_transport(options);
    auto address = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      at_accept_ = connection->peer();
      return at_server_;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    address_ = *address;
  }
  void connect(const TcpOptions& options) {
    client_ = make_tcp_transport(options);
    auto connection = client_->connect(address_, at_client_, absl::Seconds(60));
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
    (void)connection_->send({"first", {}});
  }
  PeerIdentity at_accept() {
    MutexLock lock(mutex_);
    return at_accept_;
  }

  std::unique_ptr<Transport> server_, client_;
  std::string address_;
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> connection_;
  Mutex mutex_;
  PeerIdentity at_accept_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(SecureTcp, WritesForWhichTheKernelHasNoMemoryAreRepeated) {
  listen(options_with(fake_credentials()));
  connect(options_with(fake_credentials({.writes_without_memory = 20})));
  ASSERT_TRUE(connection_->send({"large", {make_test_buffer(200'000, 1)}}).ok());
  const std::vector<Message> received = at_server_->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(received[0].header, "first");
  EXPECT_TRUE(is_test_buffer(received[1].buffers.at(0), 200'000, 1));
  EXPECT_EQ(at_client_->closed_count(), 0);
}

struct End {
  const char* name;
  CredentialsPtr credentials;
  // Ends with different proofs refuse each other.
  int proof;
};

TEST(SecureTcpKinds, EndsConnectOnlyIfTheyGiveTheSameProof) {
  const End ends[] = {{"no credentials", security::no_credentials(), 0},
                      {"no credentials", security::insecure_credentials(), 0},
                      {"a token", token_credentials(), 1},
                      {"a certificate", certificates("worker"), 2}};
  for (const End& server_end : ends) {
    for (const End& client_end : ends) {
      SCOPED_TRACE(absl::StrCat(client_end.name, " to ", server_end.name));
      auto at_server = std::make_shared<RecordingListener>();
      auto at_client = std::make_shared<RecordingListener>();
      TcpOptions server_options = options_with(server_end.credentials);
      server_options.bind_address = "127.0.0.1";
      auto server = make_tcp_transport(server_options);
      int accepted = 0;
      auto address = server->listen([&](const std::shared_ptr<Connection>&) {
        ++accepted;
        return at_server;
      });
      ASSERT_TRUE(address.ok()) << address.status();
      auto client = make_tcp_transport(options_with(client_end.credentials));
      auto connection = client->connect(*address, at_client, absl::Seconds(60));
      ASSERT_TRUE(connection.ok()) << connection.status();
      ASSERT_TRUE((*connection)->send({"first", {}}).ok());
      const bool same = server_end.proof == client_end.proof;
      if (same) {
        EXPECT_EQ(at_server->wait_for_messages(1).size(), 1u);
      } else {
        const absl::Status reason = at_client->wait_closed();
        EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
        EXPECT_NE(reason.message().find(absl::StrCat("the connecting process has ", client_end.name,
                                                     ", the accepting process has ", server_end.name)),
                  std::string::npos)
            << reason;
      }
      client->shutdown();
      server->shutdown();
      EXPECT_EQ(accepted, same ? 1 : 0);
    }
  }
}

TEST_F(SecureTcp, BothEndsKnowTheirPeer) {
  listen(options_with(token_credentials(), "server"));
  connect(options_with(token_credentials(), "client"));
  EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(at_accept().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(at_accept().name, "client");
  EXPECT_EQ(connection_->peer().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(connection_->peer().name, "server");
}

TEST_F(SecureTcp, CertificatesNameThePeerWhateverItSays) {
  listen(options_with(certificates("a"), "server"));
  connect(options_with(certificates("b"), "client"));
  EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(at_accept().proof, PeerIdentity::Proof::kCertificate);
  EXPECT_EQ(at_accept().name, "b");
  EXPECT_EQ(at_accept().job, "job");
  EXPECT_EQ(connection_->peer().name, "a");
}

TEST_F(SecureTcp, ACertificateOfAnotherAuthorityIsUnauthenticated) {
  const security::TestAuthority other;
  listen(options_with(certificates("a")));
  connect(options_with(*security::make_certificate_credentials(other.worker("job", "b"))));
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_EQ(at_server_->closed_count(), 0);
}

// Both ends have sent everything, and the end of TLS, before either closes its socket.
TEST_F(SecureTcp, AFlushOverTlsDeliversEverything) {
  listen(options_with(certificates("a")));
  connect(options_with(certificates("b")));
  Message message;
  message.buffers = {make_test_buffer(8 << 20, 3)};
  ASSERT_TRUE(connection_->send(std::move(message)).ok());
  connection_->close(absl::CancelledError("done"), absl::Seconds(60));
  const auto received = at_server_->wait_for_messages(2);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_TRUE(is_test_buffer(received[1].buffers[0], 8 << 20, 3));
  const absl::Status reason = at_server_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnavailable) << reason;
  EXPECT_NE(reason.message().find("the peer closed the connection"), std::string::npos) << reason;
  EXPECT_EQ(at_client_->wait_closed().code(), absl::StatusCode::kCancelled);
}

TEST_F(SecureTcp, WithoutCredentialsThePeerIsUnknown) {
  listen({});
  connect({});
  EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(at_accept().proof, PeerIdentity::Proof::kNone);
  EXPECT_EQ(connection_->peer().proof, PeerIdentity::Proof::kNone);
}

TEST_F(SecureTcp, AWrongTokenIsUnauthenticated) {
  listen(options_with(token_credentials()));
  connect(options_with(token_credentials("another token of 32 bytes, or so")));
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_EQ(at_server_->closed_count(), 0);
}

TEST_F(SecureTcp, AnotherPurposeIsUnauthenticated) {
  listen(options_with(token_credentials(), "", "store"));
  connect(options_with(token_credentials(), "", "rpc"));
  EXPECT_EQ(at_client_->wait_closed().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(SecureTcp, AStreamThatFailsToReadEndsTheConnectionWithItsReason) {
  listen(options_with(fake_credentials({.read_fails_after = 1'000})));
  connect(options_with(fake_credentials()));
  ASSERT_TRUE(connection_->send({std::string(10'000, 'x'), {}}).ok());
  const absl::Status reason = at_server_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_NE(reason.message().find("the fake stream broke"), std::string::npos) << reason;
  EXPECT_EQ(at_server_->message_count(), 1u);
  EXPECT_FALSE(at_client_->wait_closed().ok());
}

TEST_F(SecureTcp, AStreamThatFailsToWriteEndsTheConnectionWithItsReason) {
  listen(options_with(fake_credentials()));
  connect(options_with(fake_credentials({.write_fails_after = 1'000})));
  (void)connection_->send({std::string(10'000, 'x'), {}});
  const absl::Status reason = at_client_->wait_closed();
  EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
  EXPECT_NE(reason.message().find("the fake stream broke"), std::string::npos) << reason;
  EXPECT_EQ(at_server_->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SecureTcp, CertificatesUseNoStripes) {
  TcpOptions options = options_with(fake_credentials());
  options.stripes = 2;
  options.stripe_from_bytes = 64 << 10;
  listen(options);
  connect(options);
  for (int i = 0; i < 3; ++i) {
    Message message;
    message.buffers = {make_test_buffer(1 << 20, static_cast<unsigned>(i))};
    ASSERT_TRUE(connection_->send(std::move(message)).ok());
  }
  const auto received = at_server_->wait_for_messages(4);
  ASSERT_EQ(received.size(), 4u);
  for (unsigned i = 0; i < 3; ++i) EXPECT_TRUE(is_test_buffer(received[i + 1].buffers[0], 1 << 20, i));
}

// Credentials with a token. The handshake of a stripe finds no memory.
class NoStripeCredentials : public Credentials {
 public:
  Kind kind() const override { return Kind::kToken; }
  std::unique_ptr<security::SocketHandshake> connected(
      int socket, const security::ConnectionFacts& facts) const override {
    return token_->connected(socket, facts);
  }
  std::unique_ptr<security::SocketHandshake> accepted(int socket,
                                                      const security::ConnectionFacts& facts) const override {
    if (!absl::EndsWith(facts.purpose, "/stripe")) return token_->accepted(socket, facts);
    ++refused;
    throw std::bad_alloc();
  }

  mutable std::atomic<int> refused{0};

 private:
  const CredentialsPtr token_ = token_credentials();
};

TEST_F(SecureTcp, AConnectionGoesOnWithoutTheStripesForWhichThereIsNoMemory) {
  const auto credentials = std::make_shared<NoStripeCredentials>();
  TcpOptions options = options_with(credentials);
  options.stripes = 2;
  options.stripe_from_bytes = 64 << 10;
  listen(options);
  connect(options);
  const auto send = [&](unsigned seed) {
    Message message;
    message.buffers = {make_test_buffer(1 << 20, seed)};
    EXPECT_TRUE(connection_->send(std::move(message)).ok());
  };
  // A large message that is sent before the connection is established requests no stripes.
  ASSERT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  send(0);
  ASSERT_TRUE(eventually([&] { return credentials->refused > 0; }));
  send(1);
  const auto received = at_server_->wait_for_messages(3);
  ASSERT_EQ(received.size(), 3u);
  for (unsigned i = 0; i < 2; ++i) EXPECT_TRUE(is_test_buffer(received[i + 1].buffers[0], 1 << 20, i));
}

TEST(TcpWithoutCredentials, ListensOnTheLoopbackInterfaceOnly) {
  auto server = make_tcp_transport();
  auto listener = std::make_shared<RecordingListener>();
  const auto address = server->listen([&](const std::shared_ptr<Connection>&) { return listener; });
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->rfind("127.0.0.1:", 0), 0u) << *address;
  for (const char* outside : {"0.0.0.0", "::", "192.0.2.1"}) {
    TcpOptions options;
    options.bind_address = outside;
    const absl::Status status = make_tcp_transport(options)->listen(refuse).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find("launcher"), std::string::npos) << status;
    EXPECT_NE(status.message().find(outside), std::string::npos) << status;
  }
  for (const char* inside : {"127.0.0.1", "127.3.2.1", "localhost"}) {
    TcpOptions options;
    options.bind_address = inside;
    const auto listening = make_tcp_transport(options)->listen(refuse);
    EXPECT_TRUE(listening.ok()) << inside << ": " << listening.status();
  }
}

TEST(TcpWithoutCredentials, ConnectsToTheLoopbackInterfaceOnly) {
  auto server = make_tcp_transport();
  auto at_server = std::make_shared<RecordingListener>();
  const auto address = server->listen([&](const std::shared_ptr<Connection>&) { return at_server; });
  ASSERT_TRUE(address.ok()) << address.status();
  auto client = make_tcp_transport();
  for (const char* outside : {"192.0.2.1:80", "[2001:db8::1]:80", "0.0.0.0:80", "[::ffff:192.0.2.1]:80"}) {
    const absl::Status status =
        client->connect(outside, std::make_shared<RecordingListener>(), absl::Seconds(60)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_NE(status.message().find(outside), std::string::npos) << status;
    EXPECT_NE(status.message().find("SecurityOptions"), std::string::npos) << status;
  }
  // The addresses of a list that are allowed are tried.
  auto connection = client->connect(absl::StrCat("192.0.2.1:80,", *address),
                                    std::make_shared<RecordingListener>(), absl::Seconds(60));
  ASSERT_TRUE(connection.ok()) << connection.status();
  ASSERT_TRUE((*connection)->send({"first", {}}).ok());
  EXPECT_EQ(at_server->wait_for_messages(1).size(), 1u);
}

TEST(TcpWithCredentials, ListensOnAllInterfaces) {
  for (const CredentialsPtr& credentials : {security::insecure_credentials(), token_credentials()}) {
    TcpOptions options = options_with(credentials);
    options.bind_address = "0.0.0.0";
    const auto address = make_tcp_transport(options)->listen(refuse);
    EXPECT_TRUE(address.ok()) << address.status();
  }
}

}  // namespace
}  // namespace gradwire::transport
