#include <gtest/gtest.h>

#include <new>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/base/error.h"
#include "gradwire/base/futures/future.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/failing_memory.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/options.h"
#include "gradwire/rpc/testing/group.h"

// Agents in a process in which an allocation fails.
namespace gradwire::rpc {
namespace {

std::string echo(const std::string& text) { return text; }
GRADWIRE_RPC(echo)

Future<std::string> echo_later(const std::string& text) { return rpc_async<&echo>("worker0", text); }
GRADWIRE_RPC(echo_later)

// A kind of call of worker0 to worker1. `call` returns `text`.
struct Kind {
  const char* name;
  std::string (*call)(Agent& agent, const std::string& text);
};

std::string call_sync(Agent& agent, const std::string& text) {
  return agent.rpc_sync<&echo>("worker1", text);
}
std::string call_large(Agent& agent, const std::string& text) {
  std::string large = text;
  large.resize(1 << 20, 'x');
  return agent.rpc_async<&echo>("worker1", large).wait().substr(0, text.size());
}
std::string call_later(Agent& agent, const std::string& text) {
  return agent.rpc_sync<&echo_later>("worker1", text);
}

class NoMemory : public ::testing::TestWithParam<std::tuple<Kind, std::string>> {
 protected:
  static void expect_that_calls_work(testing::Group& group) {
    const std::string text = "a text that needs memory of its own";
    for (const int from : {0, 1}) {
      std::string last;
      const bool works = eventually([&] {
        // A connection that had no memory may still be closing.
        last.clear();
        try {
          return group[from]->rpc_sync<&echo>(absl::StrCat("worker", 1 - from), text) == text;
        } catch (const Error& error) {
          last = error.what();
          return false;
        }
      });
      EXPECT_TRUE(works) << "from worker" << from << ": " << last;
    }
  }

  static void expect_no_memory(const absl::Status& status) {
    EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
  }
};

INSTANTIATE_TEST_SUITE_P(Calls, NoMemory,
                         ::testing::Combine(::testing::Values(Kind{"Sync", call_sync},
                                                              Kind{"Large", call_large},
                                                              Kind{"Later", call_later}),
                                            ::testing::Values("tcp", "shm")),
                         [](const auto& each) {
                           return absl::StrCat(std::get<0>(each.param).name, "_", std::get<1>(each.param));
                         });

// Only of the thread that calls, which also drives the event loop while it waits (tests/rpc/no_memory_test.cc
// has the other threads).
TEST_P(NoMemory, CallEndsAndTheNextOneWorks) {
  const auto& [kind, transport] = GetParam();
  RpcBackendOptions options;
  options.transports = {transport};
  options.rpc_timeout = absl::Seconds(20);
  testing::Group group(2, options);
  const std::string text(100, 'x');
  ASSERT_EQ(kind.call(*group[0], text), text);
  constexpr int kMost = 2'000;
  bool failed = true;
  int n = 0;
  while (failed && ++n < kMost) {
    SCOPED_TRACE(absl::StrCat("allocation ", n));
    std::string answer = text;
    absl::Status status;
    {
      const FailingMemory failing(n - 1, 1);
      try {
        answer = kind.call(*group[0], text);
      } catch (const Error& error) {
        status = error.status();
      } catch (const std::bad_alloc&) {
        status = no_memory();
      }
      failed = failing.failed() > 0;
    }
    EXPECT_EQ(answer, text);
    if (!status.ok()) expect_no_memory(status);
    expect_that_calls_work(group);
  }
  EXPECT_LT(n, kMost);
  EXPECT_GT(n, 1);
  group.expect_empty();
}

TEST(WithoutMemory, ExceptionBecomesAStatus) {
  absl::Status status;
  for (int n = 1; n < 4; ++n) {
    try {
      throw std::bad_alloc();
    } catch (...) {
      const FailingMemory failing(n - 1, 1);
      status = caught("a step that needs memory");
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
}

}  // namespace
}  // namespace gradwire::rpc
