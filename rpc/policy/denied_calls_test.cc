#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/calls/rref.h"
#include "gradwire/rpc/policy/policy_text.h"
#include "gradwire/rpc/registry/registration.h"
#include "gradwire/rpc/stream.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"

// Several agents in one process. Each Group checks at its end that no table of an agent has an entry left.
namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Group;
using ::testing::HasSubstr;
using testing::PolicyText;

std::atomic<int> runs{0};
std::atomic<int> made{0};

int64_t twice(int64_t x) {
  ++runs;
  return 2 * x;
}
int64_t thrice(int64_t x) {
  ++runs;
  return 3 * x;
}
int64_t retried(int64_t x) {
  ++runs;
  return x;
}
struct Shelf {
  explicit Shelf(int64_t start) : value(start) { ++made; }
  int64_t add(int64_t by) { return value += by; }
  int64_t clear() { return value.exchange(0); }
  std::atomic<int64_t> value;
};
int64_t use(const RRef<Shelf>& shelf) { return shelf.rpc_sync<&Shelf::add>(1); }
int64_t fetch(const RRef<int64_t>& value) { return value.to_here(); }
// The code and the message of the reason why this worker may not hold the reference.
std::string confirmation(const RRef<int64_t>& value) {
  return std::string(value.confirmed().result().ToString());
}
Stream<int64_t> count(int64_t to) {
  for (int64_t i = 0; i < to; ++i) co_yield i;
}
GRADWIRE_RPC(count)
GRADWIRE_RPC(twice)
GRADWIRE_RPC(thrice)
GRADWIRE_RPC_IDEMPOTENT(retried)
GRADWIRE_RPC(use)
GRADWIRE_RPC(fetch)
GRADWIRE_RPC(confirmation)
GRADWIRE_RPC_CLASS(Shelf, int64_t)
GRADWIRE_RPC_METHOD(Shelf, add)
GRADWIRE_RPC_METHOD(Shelf, clear)

// The names of the callees above, in the unnamed namespace.
constexpr char kNames[] = "gradwire::rpc::*";

RpcBackendOptions with(const PolicyText& text) {
  RpcBackendOptions options;
  options.security.policy_file = text.path();
  return options;
}

void expect_denied(const absl::Status& status, absl::string_view text) {
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(text));
}

TEST(DeniedCalls, FunctionsNeedARule) {
  const PolicyText text("allow a function *::twice\n");
  runs = 0;
  Group group({"a", "b", "c"}, with(text));
  AgentGuard guard(group[0]);
  EXPECT_EQ(rpc_sync<&twice>("b", 2), 4);
  const absl::Status denied = status_of([] { rpc_sync<&thrice>("b", 2); });
  expect_denied(denied, "worker \"a\" may not call the function");
  EXPECT_THAT(denied.message(),
              AllOf(HasSubstr("thrice"), HasSubstr("of worker \"b\""), HasSubstr(text.path())));
  EXPECT_EQ(worker_of(denied), "b");
  expect_denied(status_of([] { rpc_sync<&retried>("b", 2); }), "retried");
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(group[1]->statistics().calls_denied, 2u);
  EXPECT_EQ(group[0]->statistics().calls_denied, 0u);
  // A worker may call itself.
  EXPECT_EQ(rpc_sync<&thrice>("a", 2), 6);
  AgentGuard other(group[2]);
  expect_denied(status_of([] { rpc_sync<&twice>("b", 2); }), "worker \"c\" may not");
}

TEST(DeniedCalls, WithoutAPolicyAllThatIsRegisteredIsAllowed) {
  Group group({"a", "b"});
  AgentGuard guard(group[0]);
  EXPECT_EQ(rpc_sync<&thrice>("b", 2), 6);
  EXPECT_EQ(group[1]->statistics().calls_denied, 0u);
}

TEST(DeniedCalls, ClassesNeedARuleForObjectsAndMethods) {
  const PolicyText text(absl::StrCat("allow a,b class ", kNames, "Shelf\nallow b class ", kNames,
                                     "Shelf::add\ndeny b class ", kNames, "::clear\nallow * reference *\n",
                                     "allow c class *::Shelf::*\nallow * function *::use\n"));
  made = 0;
  Group group({"a", "b", "c", "d"}, with(text));
  {
    AgentGuard guard(group[0]);
    const RRef<Shelf> shelf = remote<Shelf>("d", 1);
    EXPECT_EQ(shelf.rpc_sync<&Shelf::add>(2), 3);
    EXPECT_EQ(shelf.rpc_sync<&Shelf::clear>(), 3);
    // "c" may use objects, and not make them.
    EXPECT_EQ(rpc_sync<&use>("c", shelf), 1);
  }
  {
    AgentGuard guard(group[1]);
    const RRef<Shelf> shelf = remote<Shelf>("d", 1);
    EXPECT_EQ(shelf.rpc_sync<&Shelf::add>(2), 3);
    expect_denied(status_of([&] { shelf.rpc_sync<&Shelf::clear>(); }), "line 3");
  }
  EXPECT_EQ(made, 2);
  AgentGuard guard(group[2]);
  const RRef<Shelf> shelf = remote<Shelf>("d", 1);
  expect_denied(status_of([&] { shelf.rpc_sync<&Shelf::add>(1); }), "make objects of the class");
  EXPECT_EQ(made, 2);
}

// The Group finds what a denied remote() would leave at the caller or at the callee.
TEST(DeniedCalls, ADeniedRemoteLeavesNoReference) {
  const PolicyText text("allow a function *::twice\n");
  made = runs = 0;
  Group group({"a", "b"}, with(text));
  AgentGuard guard(group[0]);
  {
    const RRef<Shelf> shelf = remote<Shelf>("b", 1);
    expect_denied(status_of([&] { shelf.rpc_sync<&Shelf::add>(1); }), "make objects of the class");
    // The function is allowed, but not to keep its result there.
    const RRef<int64_t> result = remote<&twice>("b", 1);
    expect_denied(status_of([&] { result.to_here(); }), "may not hold references of worker \"b\"");
    expect_denied(result.confirmed().result(), "may not hold references");
  }
  group.expect_empty();
  EXPECT_EQ(made + runs, 0);
}

TEST(DeniedCalls, FetchingNeedsARule) {
  const PolicyText text("allow a function *\nallow a reference hold\n");
  Group group({"a", "b"}, with(text));
  AgentGuard guard(group[0]);
  {
    const RRef<int64_t> result = remote<&twice>("b", 2);
    expect_denied(status_of([&] { result.to_here(); }), "fetch the values of references");
    // The function that runs at the owner may use the value.
    EXPECT_EQ(rpc_sync<&fetch>("b", result), 4);
  }
  group.expect_empty();
}

// "a" passes a reference to a value of "b" on to "c", which may not hold it. Its handle fails, "a" is
// released from keeping the value for it, and nothing is left anywhere.
TEST(DeniedCalls, APassedReferenceThatMayNotBeHeldFails) {
  const PolicyText text("allow a everything\nallow c function *\n");
  Group group({"a", "b", "c"}, with(text));
  {
    AgentGuard guard(group[0]);
    const RRef<int64_t> value = remote<&twice>("b", 2);
    EXPECT_EQ(value.to_here(), 4);
    const std::string reason = rpc_sync<&confirmation>("c", value);
    EXPECT_THAT(reason,
                AllOf(HasSubstr("PERMISSION_DENIED"), HasSubstr("worker \"c\" may not hold references"),
                      HasSubstr("of worker \"b\"")));
    expect_denied(status_of([&] { rpc_sync<&fetch>("c", value); }), "worker \"c\" may not fetch");
    // The reference of "a" is not affected.
    EXPECT_EQ(value.to_here(), 4);
  }
  group.expect_empty();
}

// The references in the arguments of a denied call are given back.
TEST(DeniedCalls, ReferencesInDeniedArgumentsAreReleased) {
  const PolicyText text("allow a function *::twice\nallow a,b reference *\ndeny a function *::fetch\n");
  Group group({"a", "b", "c"}, with(text));
  {
    AgentGuard guard(group[0]);
    const RRef<int64_t> own(int64_t{7});
    const RRef<int64_t> of_c = remote<&twice>("c", 2);
    expect_denied(status_of([&] { rpc_sync<&fetch>("b", own); }), "line 3");
    expect_denied(status_of([&] { rpc_sync<&fetch>("b", of_c); }), "line 3");
    EXPECT_EQ(of_c.to_here(), 4);
  }
  group.expect_empty();
}

TEST(DeniedCalls, BarriersNeedARule) {
  const PolicyText text("allow b service barrier\n");
  Group group({"a", "b", "c"}, with(text));
  // The worker with the lowest id leads the barrier, and is asked by the others.
  std::thread leader([&] { group[0]->barrier({"a", "b"}, absl::Seconds(60)); });
  group[1]->barrier({"a", "b"}, absl::Seconds(60));
  leader.join();
  expect_denied(status_of([&] {
                  group[2]->barrier({"b", "c"}, absl::Seconds(60));
                }),
                "use the service \"barrier\"");
}

TEST(DeniedCalls, StreamsNeedRulesToBeginAndToRead) {
  const PolicyText text(
      "allow a,b function *::count\nallow a,b reference hold\nallow a class Stream[*\nallow c function *\n");
  Group group({"a", "b", "c", "d"}, with(text));
  const auto sum = [&](std::size_t rank) {
    AgentGuard guard(group[rank]);
    int64_t total = 0;
    for (const int64_t item : rpc_stream<&count>("d", 4)) total += item;
    return total;
  };
  EXPECT_EQ(sum(0), 6);
  expect_denied(status_of([&] { sum(1); }), "Stream[int64].take");
  expect_denied(status_of([&] { sum(2); }), "may not hold references");
}

TEST(DeniedCalls, TheRulesMayChangeWhileCallsRun) {
  PolicyText text("allow a function *\n");
  Group group({"a", "b"}, with(text));
  AgentGuard guard(group[0]);
  EXPECT_EQ(rpc_sync<&twice>("b", 1), 2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      AgentGuard guard(group[0]);
      while (!stop) {
        const absl::Status status = status_of([] { EXPECT_EQ(rpc_sync<&thrice>("b", 1), 3); });
        EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
      }
    });
  }
  // The file is examined once a second.
  const auto becomes = [&](bool allowed) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (status_of([] { rpc_sync<&twice>("b", 1); }).ok() != allowed) ASSERT_LT(absl::Now(), deadline);
  };
  text.replace("deny a function *::twice\nallow a function *\n");
  becomes(false);
  // With a mistake the rules stay.
  text.replace("allow a functoin *\n");
  text.replace("allow a function *\n");
  becomes(true);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(DeniedCalls, ARefusalIsLoggedOnce) {
  const PolicyText text("deny a function *\n");
  Group group({"a", "b"}, with(text));
  AgentGuard guard(group[0]);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    expect_denied(status_of([] { rpc_sync<&twice>("b", 1); }), "line 1");
    expect_denied(status_of([] { rpc_sync<&thrice>("b", 1); }), "line 1");
  }
  EXPECT_THAT(captured_lines("may not"), ElementsAre(AllOf(HasSubstr("twice"), HasSubstr("counted only"))));
  EXPECT_EQ(group[1]->statistics().calls_denied, 10u);
}

TEST(DeniedCalls, AnAgentDoesNotStartWithABadPolicy) {
  const auto start = [](const std::string& path) {
    return status_of([&] {
      RpcBackendOptions options;
      options.security.policy_file = path;
      options.store = std::make_shared<store::HashStore>();
      Agent::start("a", 0, 1, options);
    });
  };
  const PolicyText bad("allow a functoin f");
  const absl::Status status = start(bad.path());
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(bad.path() + ":1:9: unknown kind"));
  const PolicyText open("allow a function f");
  ASSERT_EQ(chmod(open.path().c_str(), 0666), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(start(open.path())));
  EXPECT_TRUE(absl::IsNotFound(start("/no/such/policy")));
}

}  // namespace
}  // namespace gradwire::rpc
