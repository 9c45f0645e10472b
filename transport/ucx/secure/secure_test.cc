// Tests which ends connect over UCX, and what they know of each other.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/security/credentials.h"
#include "gradwire/security/secret.h"
#include "gradwire/security/token/token_credentials.h"
#include "gradwire/transport/recording_listener.h"
#include "gradwire/transport/ucx/ucx_transport.h"
#include "gtest/gtest.h"

namespace gradwire::transport {
namespace {

using security::CredentialsPtr;
using security::PeerIdentity;
using ::testing::HasSubstr;
using ::testing::SizeIs;

CredentialsPtr token(const char* text = "a token of the job, of 32 bytes at least") {
  return *security::make_token_credentials(security::Secret(text), true);
}

UcxOptions options_with(const CredentialsPtr& credentials, const std::string& name = "",
                        const std::string& purpose = "test") {
  UcxOptions options;
  options.credentials = credentials;
  options.own_name = name;
  options.purpose = purpose;
  options.bind_address = "127.0.0.1";
  return options;
}

class SecureUcx : public ::testing::Test {
 protected:
  ~SecureUcx() override { shut_down(); }

  void shut_down() {
    if (client_ != nullptr) client_->shutdown();
    if (server_ != nullptr) server_->shutdown();
  }

  void connect(const UcxOptions& server, const UcxOptions& client) {
    server_ = make_ucx_transport(server);
    auto address = server_->listen([this](const std::shared_ptr<Connection>& connection) {
      MutexLock lock(mutex_);
      at_accept_ = connection->peer();
      ++accepted_;
      return at_server_;
    });
    ASSERT_TRUE(address.ok()) << address.status();
    client_ = make_ucx_transport(client);
    auto connection = client_->connect(*address, at_client_, kTestTimeout);
    ASSERT_TRUE(connection.ok()) << connection.status();
    connection_ = *connection;
    (void)connection_->send({"first", {}});
  }

  PeerIdentity at_accept() {
    MutexLock lock(mutex_);
    return at_accept_;
  }
  int accepted() {
    MutexLock lock(mutex_);
    return accepted_;
  }

  // The connection is refused for a reason with this text, which both ends report.
  void expect_refused(const UcxOptions& server, const UcxOptions& client, const std::string& text) {
    testing::internal::CaptureStderr();
    connect(server, client);
    const absl::Status reason = at_client_->wait_closed();
    shut_down();
    const std::vector<std::string> warnings = captured_lines("refused a connection over UCX");
    EXPECT_EQ(reason.code(), absl::StatusCode::kUnauthenticated) << reason;
    EXPECT_THAT(std::string(reason.message()), HasSubstr(text));
    ASSERT_THAT(warnings, SizeIs(1));
    EXPECT_THAT(warnings[0], HasSubstr(text));
    EXPECT_EQ(accepted(), 0);
  }

  std::unique_ptr<Transport> server_, client_;
  std::shared_ptr<RecordingListener> at_server_ = std::make_shared<RecordingListener>();
  std::shared_ptr<RecordingListener> at_client_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Connection> connection_;
  Mutex mutex_;
  PeerIdentity at_accept_ ABSL_GUARDED_BY(mutex_);
  int accepted_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(SecureUcx, BothEndsKnowTheirPeer) {
  connect(options_with(token(), "server"), options_with(token(), "client"));
  EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(at_accept().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(at_accept().name, "client");
  EXPECT_EQ(connection_->peer().proof, PeerIdentity::Proof::kToken);
  EXPECT_EQ(connection_->peer().name, "server");
}

TEST_F(SecureUcx, InsecureEndsDoNotKnowTheirPeer) {
  connect(options_with(security::insecure_credentials(), "server"),
          options_with(security::insecure_credentials(), "client"));
  EXPECT_EQ(at_server_->wait_for_messages(1).size(), 1u);
  EXPECT_EQ(at_accept().proof, PeerIdentity::Proof::kNone);
  EXPECT_EQ(connection_->peer().proof, PeerIdentity::Proof::kNone);
}

TEST_F(SecureUcx, AnotherTokenIsRefused) {
  expect_refused(options_with(token()), options_with(token("another token of 32 bytes, or so")),
                 "the two processes have different tokens; start both with the same token");
}

TEST_F(SecureUcx, AConnectingEndWithoutATokenIsRefused) {
  expect_refused(
      options_with(token()), options_with(security::insecure_credentials()),
      "the connecting process has no credentials, the accepting process has a token; give both the "
      "same token");
}

TEST_F(SecureUcx, AnAcceptingEndWithoutATokenIsRefused) {
  expect_refused(
      options_with(security::insecure_credentials()), options_with(token()),
      "the connecting process has a token, the accepting process has no credentials; give both the "
      "same token");
}

TEST_F(SecureUcx, AnotherPurposeIsRefused) {
  expect_refused(options_with(token(), "", "store"), options_with(token(), "", "rpc"),
                 "this is the port of a store, not of an rpc worker");
}

TEST_F(SecureUcx, AProcessThatIsRefusedByItsListenerIsUnavailable) {
  server_ = make_ucx_transport(options_with(token()));
  const auto address = server_->listen([](const std::shared_ptr<Connection>&) { return nullptr; });
  ASSERT_TRUE(address.ok()) << address.status();
  client_ = make_ucx_transport(options_with(token()));
  ASSERT_TRUE(client_->connect(*address, at_client_, kTestTimeout).ok());
  EXPECT_EQ(at_client_->wait_closed().code(), absl::StatusCode::kUnavailable);
}

TEST(UcxWithoutCredentials, NeitherListensNorConnects) {
  const auto transport = make_ucx_transport();
  const absl::Status listening =
      transport->listen([](const std::shared_ptr<Connection>&) { return nullptr; }).status();
  const absl::Status connecting =
      transport->connect("127.0.0.1:1", std::make_shared<RecordingListener>(), kTestTimeout).status();
  for (const absl::Status& status : {listening, connecting}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"ucx\" takes a token"));
  }
}

}  // namespace
}  // namespace gradwire::transport
