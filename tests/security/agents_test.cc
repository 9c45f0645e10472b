// Agents whose connections are protected by a token or by certificates, over real sockets: which get in,
// which do not, and the error that each of them gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/agent/agent_hooks.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/security/security_options.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/security/tls/certificate_credentials.h"
#include "gradwire/security/token/token_file.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/transport/tcp/socket/address.h"
#include "gradwire/transport/tcp/tcp_transport.h"
#include "gradwire/transport/transport.h"

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
  using Hooks = std::shared_ptr<const AgentHooks>;

  // The agents with hooks may be others than they say (impostor()).
  Pair(const SecurityOptions& caller, const SecurityOptions& callee,
       const std::string& caller_name = "caller", Hooks caller_hooks = nullptr, Hooks callee_hooks = nullptr)
      : store_(std::make_shared<store::HashStore>()),
        callee_(start("callee", callee, std::move(callee_hooks))),
        caller_(start(caller_name, caller, std::move(caller_hooks))) {}

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
  std::shared_ptr<Agent> start(const std::string& name, const SecurityOptions& security, Hooks hooks) {
    RpcBackendOptions options;
    options.store = store_;
    options.transports = {"tcp"};
    options.security = security;
    options.hooks = std::move(hooks);
    return Agent::start(name, -1, 0, options);
  }

  const std::shared_ptr<store::HashStore> store_;
  const std::shared_ptr<Agent> callee_;
  const std::shared_ptr<Agent> caller_;
};

// A worker does not start with the certificate of another one. An attacker is not so careful: it proves the
// name in the certificate at each connection, and then says another one.
Pair::Hooks impostor(const security::CertificateFiles& files) {
  return wrap_transports([files](std::unique_ptr<transport::Transport>) {
    transport::TcpOptions options;
    options.credentials = *security::make_certificate_credentials(files);
    options.purpose = "rpc";
    return transport::make_tcp_transport(options);
  });
}

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
  Pair pair({}, certificate(authority.worker("job", "callee")), "director",
            impostor(authority.worker("job", "clerk")));
  const absl::Status status = pair.call();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("director"), HasSubstr("clerk"))) << status;
}

TEST(SecureAgents, CalleeWithTheCertificateOfAnotherWorkerIsNotCalled) {
  const security::TestAuthority authority;
  const absl::Status status = Pair(certificate(authority.worker("job", "caller")), {}, "caller", nullptr,
                                   impostor(authority.worker("job", "impostor")))
                                  .call();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("callee"), HasSubstr("impostor"))) << status;
}

// Also over shared memory, which knows no names.
TEST(SecureAgents, WorkerDoesNotStartWithTheCertificateOfAnotherWorkerOrJob) {
  const security::TestAuthority authority;
  const auto start = [&](const std::string& transport, const SecurityOptions& security) {
    return status_of([&] {
      RpcBackendOptions options;
      options.store = std::make_shared<store::HashStore>();
      options.transports = {transport};
      options.security = security;
      Agent::start("director", -1, 0, options)->shutdown(false);
    });
  };
  for (const char* transport : {"tcp", "shm"}) {
    SecurityOptions security = certificate(authority.worker("job", "director"));
    security.job = "job";
    EXPECT_EQ(start(transport, security), absl::OkStatus());
    security.job = "another job";
    const absl::Status job = start(transport, security);
    EXPECT_EQ(job.code(), absl::StatusCode::kInvalidArgument) << job;
    EXPECT_THAT(std::string(job.message()), AllOf(HasSubstr("\"job\""), HasSubstr("\"another job\""),
                                                  HasSubstr(security.certificate_file)));
    security = certificate(authority.worker("job", "clerk"));
    const absl::Status name = start(transport, security);
    EXPECT_EQ(name.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(name.message()), AllOf(HasSubstr("\"director\""), HasSubstr("\"clerk\""),
                                                   HasSubstr(security.certificate_file)));
  }
}

// Its listen() returns what a worker on another host would return, without credentials.
class ElsewhereTransport : public transport::Transport {
 public:
  explicit ElsewhereTransport(std::unique_ptr<transport::Transport> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return inner_->name(); }
  absl::StatusOr<std::string> listen(AcceptHandler on_accept) override {
    absl::StatusOr<std::string> address = inner_->listen(std::move(on_accept));
    if (!address.ok()) return address;
    return transport::in_network(transport::without_network(*address), "another-host-1");
  }
  absl::StatusOr<std::shared_ptr<transport::Connection>> connect(
      const std::string& address, std::shared_ptr<transport::ConnectionListener> listener,
      absl::Duration timeout) override {
    return inner_->connect(address, std::move(listener), timeout);
  }
  void shutdown() override { inner_->shutdown(); }

 private:
  const std::unique_ptr<transport::Transport> inner_;
};

// The two have found each other in a store that both hosts can reach, for example a shared file or etcd.
TEST(SecureAgents, WorkerWithoutCredentialsOnAnotherHostIsNamedWithTheRemedy) {
  const auto elsewhere = wrap_transports([](std::unique_ptr<transport::Transport> inner) {
    return std::make_unique<ElsewhereTransport>(std::move(inner));
  });
  for (const SecurityOptions& caller : {SecurityOptions(), token(kToken)}) {
    const absl::Status status = Pair(caller, {}, "caller", nullptr, elsewhere).call();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr("worker \"callee\""), HasSubstr("runs on another host or in another container"),
              HasSubstr("because it has no credentials; start the job with the launcher, give all its "
                        "processes one token"),
              HasSubstr("SecurityOptions::insecure")));
  }
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

// The credentials are made once: the token file may be removed while the job runs.
TEST(SecureStore, ItsClonesNeedNoTokenFile) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/token_of_clones");
  const absl::Status created = security::create_token_file(file, security::make_token());
  ASSERT_TRUE(created.ok()) << created;
  SecurityOptions security;
  security.token_file = file;
  store::TcpStore master("127.0.0.1", 0, {.is_master = true, .security = security});
  store::TcpStore other("127.0.0.1", master.port(), client(security));
  ASSERT_EQ(::unlink(file.c_str()), 0);
  master.set("key", "value");
  EXPECT_EQ(master.clone()->get("key"), "value");
  EXPECT_EQ(other.clone()->get("key"), "value");
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
