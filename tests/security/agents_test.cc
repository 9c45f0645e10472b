// Agents whose connections are protected by a token or by certificates, over real sockets: which get in,
// which do not, and the error that each of them gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/agent.h"
#include "gradwire/rpc/call.h"
#include "gradwire/security/security_options.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kToken[] = "the token of this test, known to its members";
constexpr char kOtherToken[] = "a token of somebody else, of the same length";

int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)

SecurityOptions token(const std::string& text) {
  SecurityOptions security;
  security.token = text;
  return security;
}

SecurityOptions certificate(const security::CertificateFiles& files) {
  SecurityOptions security;
  security.certificate_file = files.certificate;
  security.key_file = files.key;
  security.authority_file = files.authority;
  return security;
}

// Two agents of one open group, each with options of its own, which reach each other over tcp alone.
class Pair {
 public:
  Pair(const SecurityOptions& caller, const SecurityOptions& callee,
       const std::string& caller_name = "caller")
      : store_(std::make_shared<store::HashStore>()),
        callee_(start("callee", callee)),
        caller_(start(caller_name, caller)) {}

  ~Pair() {
    for (const std::shared_ptr<Agent>& agent : {caller_, callee_}) agent->shutdown(false);
  }

  // The result of a call of `twice`.
  absl::Status call() {
    return status_of([&] {
      EXPECT_EQ(caller_->rpc_sync<&twice>(Destination("callee").with_timeout(absl::Seconds(20)), 21), 42);
    });
  }

 private:
  std::shared_ptr<Agent> start(const std::string& name, const SecurityOptions& security) {
    RpcBackendOptions options;
    options.store = store_;
    options.transports = {"tcp"};
    options.security = security;
    return Agent::start(name, -1, 0, options);
  }

  const std::shared_ptr<store::HashStore> store_;
  const std::shared_ptr<Agent> callee_;
  const std::shared_ptr<Agent> caller_;
};

TEST(SecureAgents, MembersWithOneTokenCallEachOther) {
  EXPECT_EQ(Pair(token(kToken), token(kToken)).call(), absl::OkStatus());
}

TEST(SecureAgents, MembersWithCertificatesOfOneJobCallEachOther) {
  const security::TestAuthority authority;
  Pair pair(certificate(authority.worker("job", "caller")), certificate(authority.worker("job", "callee")));
  EXPECT_EQ(pair.call(), absl::OkStatus());
}

TEST(SecureAgents, WorkerWithAnotherTokenIsRefused) {
  const absl::Status status = Pair(token(kOtherToken), token(kToken)).call();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("token"));
}

TEST(SecureAgents, WorkerWithoutATokenIsRefused) {
  const absl::Status status = Pair(SecurityOptions(), token(kToken)).call();
  EXPECT_THAT(std::string(status.message()), HasSubstr("token")) << status;
  EXPECT_FALSE(status.ok());
}

TEST(SecureAgents, WorkerWithATokenDoesNotCallOneThatAsksForNone) {
  const absl::Status status = Pair(token(kToken), SecurityOptions()).call();
  EXPECT_THAT(std::string(status.message()), HasSubstr("token")) << status;
  EXPECT_FALSE(status.ok());
}

TEST(SecureAgents, WorkerWithACertificateOfAnotherJobIsRefused) {
  const security::TestAuthority authority;
  const absl::Status status =
      Pair(certificate(authority.worker("other", "caller")), certificate(authority.worker("job", "callee")))
          .call();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("job")) << status;
}

TEST(SecureAgents, WorkerWithTheCertificateOfAnotherWorkerIsRefused) {
  const security::TestAuthority authority;
  Pair pair(certificate(authority.worker("job", "clerk")), certificate(authority.worker("job", "callee")),
            "director");
  const absl::Status status = pair.call();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("director"), HasSubstr("clerk"))) << status;
}

TEST(SecureAgents, CalleeWithTheCertificateOfAnotherWorkerIsNotCalled) {
  const security::TestAuthority authority;
  const absl::Status status =
      Pair(certificate(authority.worker("job", "caller")), certificate(authority.worker("job", "impostor")))
          .call();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("callee"), HasSubstr("impostor"))) << status;
}

store::TcpStoreOptions client(const SecurityOptions& security) {
  return {.timeout = absl::Seconds(5), .security = security};
}

TEST(SecureStore, OnlyClientsWithTheTokenUseTheStore) {
  store::TcpStore master("127.0.0.1", 0, {.is_master = true, .security = token(kToken)});
  master.set("key", "value");
  store::TcpStore friendly("127.0.0.1", master.port(), client(token(kToken)));
  EXPECT_EQ(friendly.get("key"), "value");
  for (const SecurityOptions& wrong : {token(kOtherToken), SecurityOptions()}) {
    const auto refused = store::TcpStore::open("127.0.0.1", master.port(), client(wrong));
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("token")) << refused.status();
  }
  EXPECT_EQ(master.num_keys(), 1);
}

TEST(SecureStore, ClientWithATokenDoesNotUseAStoreThatAsksForNone) {
  store::TcpStore master("127.0.0.1", 0, {.is_master = true});
  const auto refused = store::TcpStore::open("127.0.0.1", master.port(), client(token(kToken)));
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("token")) << refused.status();
}

TEST(SecureStore, WithoutATokenItIsServedOnThisHostOnly) {
  const auto refused = store::TcpStore::open("0.0.0.0", 0, {.is_master = true});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("without a token or a certificate"));
  const auto nowhere = store::TcpStore::open("203.0.113.1", 29500, {.timeout = absl::Seconds(5)});
  EXPECT_EQ(nowhere.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("SecurityOptions::insecure"));
}

}  // namespace
}  // namespace gradwire::rpc
