// Agents whose only transport is UCX.

#include <string>
#include <vector>

#include "gradwire/rpc/call.h"
#include "gradwire/rpc/testing/group.h"
#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

std::string twice(const std::string& text) { return text + text; }
GRADWIRE_RPC(twice)

TEST(AgentsOverUcx, CallEachOther) {
  RpcBackendOptions options;
  options.transports = {"ucx"};
  options.security.insecure = true;
  testing::Group group(2, options);
  EXPECT_EQ(group[0]->rpc_sync<&add>("worker1", 2, 3), 5);
  EXPECT_EQ(group[1]->rpc_sync<&add>("worker0", 3, 4), 7);
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", large), large + large);
}

TEST(AgentsOverUcx, ManyCallsAtOnceAreAnswered) {
  RpcBackendOptions options;
  options.transports = {"ucx"};
  options.security.insecure = true;
  testing::Group group(3, options);
  std::vector<Future<int64_t>> answers;
  for (int64_t i = 0; i < 600; ++i) {
    answers.push_back(group[i % 3]->rpc_async<&add>("worker" + std::to_string((i + 1) % 3), i, i));
  }
  for (int64_t i = 0; i < 600; ++i) EXPECT_EQ(answers[i].wait(), 2 * i);
}

}  // namespace
}  // namespace gradwire::rpc
