// Agents whose only transport is UCX, with a token, without one, and with credentials that differ.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/security/security_options.h"
#include "gradwire/security/testing/certificates.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kToken[] = "the token of this test, known to its members";
constexpr char kOtherToken[] = "a token of somebody else, of the same length";

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

std::string twice(const std::string& text) { return text + text; }
GRADWIRE_RPC(twice)

SecurityOptions token(const std::string& text) {
  SecurityOptions security;
  security.token = text;
  return security;
}

SecurityOptions insecure() {
  SecurityOptions security;
  security.insecure = true;
  return security;
}

RpcBackendOptions over_ucx(const SecurityOptions& security) {
  RpcBackendOptions options;
  options.transports = {"ucx"};
  options.security = security;
  return options;
}

class AgentsOverUcx : public ::testing::TestWithParam<std::pair<const char*, SecurityOptions>> {};

TEST_P(AgentsOverUcx, CallEachOther) {
  testing::Group group(2, over_ucx(GetParam().second));
  EXPECT_EQ(group[0]->rpc_sync<&add>("worker1", 2, 3), 5);
  EXPECT_EQ(group[1]->rpc_sync<&add>("worker0", 3, 4), 7);
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", large), large + large);
}

TEST_P(AgentsOverUcx, ManyCallsAtOnceAreAnswered) {
  testing::Group group(3, over_ucx(GetParam().second));
  std::vector<Future<int64_t>> answers;
  for (int64_t i = 0; i < 600; ++i) {
    answers.push_back(group[i % 3]->rpc_async<&add>(absl::StrCat("worker", (i + 1) % 3), i, i));
  }
  for (int64_t i = 0; i < 600; ++i) EXPECT_EQ(answers[i].wait(), 2 * i);
}

INSTANTIATE_TEST_SUITE_P(Security, AgentsOverUcx,
                         ::testing::Values(std::pair("token", token(kToken)),
                                           std::pair("insecure", insecure())),
                         [](const auto& info) { return std::string(info.param.first); });

// The result of a call between two agents of one open group with options of their own.
absl::Status call(const SecurityOptions& caller_security, const SecurityOptions& callee_security) {
  const auto store = std::make_shared<store::HashStore>();
  const auto start = [&](const std::string& name, const SecurityOptions& security) {
    RpcBackendOptions options = over_ucx(security);
    options.store = store;
    return Agent::start(name, -1, 0, options);
  };
  const std::shared_ptr<Agent> callee = start("callee", callee_security);
  const std::shared_ptr<Agent> caller = start("caller", caller_security);
  const absl::Status status = status_of([&] {
    EXPECT_EQ(caller->rpc_sync<&add>(Destination("callee").with_timeout(absl::Seconds(20)), 2, 3), 5);
  });
  for (const std::shared_ptr<Agent>& agent : {caller, callee}) agent->shutdown(false);
  return status;
}

TEST(SecureAgentsOverUcx, MembersWithOneTokenCallEachOther) {
  EXPECT_EQ(call(token(kToken), token(kToken)), absl::OkStatus());
}

TEST(SecureAgentsOverUcx, WorkerWithAnotherTokenIsRefused) {
  const absl::Status status = call(token(kOtherToken), token(kToken));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("have different tokens"));
}

TEST(SecureAgentsOverUcx, WorkerWithoutATokenIsRefused) {
  const absl::Status status = call(insecure(), token(kToken));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the accepting process has a token"));
}

TEST(SecureAgentsOverUcx, WorkerWithATokenDoesNotCallOneThatAsksForNone) {
  const absl::Status status = call(token(kToken), insecure());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the connecting process has a token"));
}

TEST(SecureAgentsOverUcx, ATokenOrInsecureIsNeeded) {
  const security::TestAuthority authority;
  const security::CertificateFiles files = authority.worker("job", "worker");
  SecurityOptions certificate;
  certificate.certificate_file = files.certificate;
  certificate.key_file = files.key;
  certificate.authority_file = files.authority;
  const std::pair<SecurityOptions, std::string> refused[] = {{SecurityOptions(), "has no credentials"},
                                                             {certificate, "has a certificate"}};
  for (const auto& [security, text] : refused) {
    const absl::Status status = status_of([&, security = security] {
      RpcBackendOptions options = over_ucx(security);
      options.store = std::make_shared<store::HashStore>();
      Agent::start("worker", -1, 0, options)->shutdown(false);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(text), HasSubstr("\"ucx\" takes a token")));
  }
}

}  // namespace
}  // namespace gradwire::rpc
