#include "gradwire/rpc/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gradwire/rpc/call.h"
#include "gradwire/rpc/testing/group.h"

namespace gradwire::rpc {
namespace {

int64_t sum(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(sum)

std::string greet(const std::string& name, std::optional<int> times) {
  std::string text;
  for (int i = 0; i < times.value_or(1); ++i) text += "hello " + name + " ";
  return text;
}
GRADWIRE_RPC(greet)

void fail() { throw std::runtime_error("as asked"); }
GRADWIRE_RPC(fail)

TEST(Agent, SyncCallReturnsResult) {
  testing::Group group(2);
  EXPECT_EQ(group[0]->rpc_sync<&sum>("worker1", 2, 3), 5);
  EXPECT_EQ(group[1]->rpc_sync<&greet>("worker0", "you", 2), "hello you hello you ");
}

TEST(Agent, CallToItselfWorks) {
  testing::Group group(1);
  EXPECT_EQ(group[0]->rpc_sync<&sum>("worker0", 2, 3), 5);
}

TEST(Agent, HandlerExceptionNamesWorkerAndFunction) {
  testing::Group group(2);
  try {
    group[0]->rpc_sync<&fail>("worker1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnknown);
    EXPECT_EQ(error.worker(), "worker1");
    EXPECT_THAT(error.what(), ::testing::HasSubstr("as asked"));
  }
}

struct Counter {
  explicit Counter(int64_t start) : value(start) {}
  int64_t increment(int64_t by) { return value += by; }
  int64_t value;
};
GRADWIRE_RPC_CLASS(Counter, int64_t)
GRADWIRE_RPC_METHOD(Counter, increment)

TEST(Agent, RemoteObjectServesMethods) {
  testing::Group group(2);
  {
    RRef<Counter> counter = group[0]->remote<Counter>("worker1", 10);
    EXPECT_EQ(counter.rpc_sync<&Counter::increment>(5), 15);
    EXPECT_EQ(counter.owner_name(), "worker1");
    EXPECT_FALSE(counter.is_owner());
    RRef<int64_t> result = counter.remote<&Counter::increment>(1);
    EXPECT_EQ(result.to_here(), 16);
  }
  group.expect_empty();
}

}  // namespace
}  // namespace gradwire::rpc
