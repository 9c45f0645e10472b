#include "gradwire/rpc/agent/agent_flight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/base/flight/flight_record_signal.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/flight/call_recorder.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/interface/forwarding_store.h"

// Flight records of real agents.
namespace gradwire::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// A handler that waits until the test lets it go.
Promise<void>& gate() {
  static auto* promise = new Promise<void>;
  return *promise;
}
Future<void> wait_at_gate() { return gate().future(); }
GRADWIRE_RPC(wait_at_gate)
int64_t twice(int64_t value) { return 2 * value; }
GRADWIRE_RPC(twice)
int64_t refuse() { throw Error(absl::NotFoundError("nothing here")); }
GRADWIRE_RPC(refuse)

std::string folder(const char* name) {
  return absl::StrCat(::testing::TempDir(), "/", name, "-", ::getpid());
}

std::string file_of(const std::string& directory, const std::shared_ptr<Agent>& agent) {
  const Worker& self = agent->services().self();
  return absl::StrFormat("%s/%s-%x.jsonl", directory, self.name, self.incarnation);
}

std::string content(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

RpcBackendOptions with_directory(const std::string& directory) {
  RpcBackendOptions options;
  options.flight.directory = directory;
  options.flight.dump_interval = absl::InfiniteDuration();
  // The timeouts of these tests.
  options.flight.dump_timeouts_from = absl::Milliseconds(10);
  return options;
}

TEST(AgentFlight, FirstTimeoutWritesTheRecordsOfTheProcess) {
  const std::string directory = folder("timeout");
  testing::Group group(2, with_directory(directory));
  gate() = Promise<void>();
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", 4), 8);
  const absl::Status late = status_of([&] {
    group[0]->rpc_sync<&wait_at_gate>(Destination("worker1").with_timeout(absl::Milliseconds(20)));
  });
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  const std::string caller = file_of(directory, group[0]);
  const std::string callee = file_of(directory, group[1]);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(caller) && std::filesystem::exists(callee); }));
  EXPECT_THAT(content(caller),
              AllOf(HasSubstr("a call timed out: "), HasSubstr("did not answer within 20ms"),
                    HasSubstr(R"("worker":"worker0")"), HasSubstr(R"("name":"worker1")"),
                    ContainsRegex(R"("side":"made".*"name":"[^"]*twice".*"code":"OK")"),
                    ContainsRegex(R"("side":"made".*wait_at_gate".*"code":"DEADLINE_EXCEEDED")"),
                    HasSubstr(R"({"type":"end","lines":)")));
  EXPECT_THAT(content(callee), AllOf(ContainsRegex(R"("side":"served".*"name":"[^"]*twice".*"code":"OK")"),
                                     ContainsRegex(R"("side":"served".*wait_at_gate)")));
  gate().set_value();
}

TEST(AgentFlight, TimeoutsWithinTheIntervalWriteThemOnce) {
  const std::string directory = folder("once");
  RpcBackendOptions options = with_directory(directory);
  options.flight.dump_interval = absl::Hours(1);
  options.num_worker_threads = 1;
  testing::Group group(2, options);
  gate() = Promise<void>();
  const auto time_out = [&] {
    EXPECT_FALSE(status_of([&] {
                   group[0]->rpc_sync<&wait_at_gate>(
                       Destination("worker1").with_timeout(absl::Milliseconds(10)));
                 }).ok());
  };
  time_out();
  const std::string path = file_of(directory, group[0]);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path); }));
  std::filesystem::remove(path);
  // The timers' thread has finished the second timeout when it begins the third one. The only thread of the
  // worker would write the records before it runs the next handler.
  time_out();
  time_out();
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker0", 4), 8);
  EXPECT_FALSE(std::filesystem::exists(path));
  gate().set_value();
}

// A program that polls with short timeouts expects them. They must not use up the dump of the interval
// either.
TEST(AgentFlight, TimeoutThatIsExpectedWritesAndLogsNothing) {
  const std::string directory = folder("expected");
  RpcBackendOptions options = with_directory(directory);
  options.flight.dump_timeouts_from = absl::Milliseconds(200);
  options.num_worker_threads = 1;
  testing::Group group(2, options);
  gate() = Promise<void>();
  const auto time_out = [&](absl::Duration timeout) {
    EXPECT_FALSE(status_of([&] {
                   group[0]->rpc_sync<&wait_at_gate>(Destination("worker1").with_timeout(timeout));
                 }).ok());
  };
  ::testing::internal::CaptureStderr();
  // The timers' thread has finished the first timeout when it begins the second one. The only thread of the
  // worker would write the records before it runs the next handler.
  time_out(absl::Milliseconds(10));
  time_out(absl::Milliseconds(10));
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker0", 4), 8);
  EXPECT_EQ(captured_lines("timed out"), std::vector<std::string>());
  const std::string path = file_of(directory, group[0]);
  EXPECT_FALSE(std::filesystem::exists(path));
  time_out(absl::Milliseconds(200));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(path); }));
  EXPECT_EQ(RpcBackendOptions().flight.dump_timeouts_from, absl::Seconds(10));
  gate().set_value();
}

TEST(AgentFlight, TimeoutAfterTheIntervalWritesThemAgain) {
  const std::string directory = folder("again");
  RpcBackendOptions options = with_directory(directory);
  options.flight.dump_interval = absl::ZeroDuration();
  testing::Group group(2, options);
  // A handler may begin after its caller has given up, so the promise stays the same.
  gate() = Promise<void>();
  for (int i = 0; i < 2; ++i) {
    (void)status_of([&] {
      group[0]->rpc_sync<&wait_at_gate>(Destination("worker1").with_timeout(absl::Milliseconds(10)));
    });
    const std::string path = file_of(directory, group[0]);
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(path); }));
    std::filesystem::remove(path);
  }
  gate().set_value();
}

TEST(AgentFlight, SignalWritesAllAgents) {
  const std::string directory = folder("signal");
  testing::Group group(2, with_directory(directory));
  ASSERT_TRUE(install_flight_record_signal(SIGUSR1).ok());
  const int before = flight_records_written();
  ASSERT_EQ(::raise(SIGUSR1), 0);
  ASSERT_TRUE(eventually([before] { return flight_records_written() > before; }));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(content(file_of(directory, group[rank])), HasSubstr("requested by a signal"));
}

TEST(AgentFlight, TextHasOpenCallsAndTheLastEvents) {
  testing::Group group(2);
  gate() = Promise<void>();
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", 4), 8);
  EXPECT_EQ(status_of([&] { group[0]->rpc_sync<&refuse>("worker1"); }).code(), absl::StatusCode::kNotFound);
  const Future<void> open = group[0]->rpc_async<&wait_at_gate>("worker1");
  // A served call leaves the table a moment after its caller has the answer.
  ASSERT_TRUE(eventually([&] {
    const std::vector<CallReport> served = group[1]->services().open_calls().served;
    return served.size() == 1 && absl::EndsWith(served[0].callee, "::wait_at_gate") &&
           served[0].state == CallState::kRunning;
  }));
  EXPECT_THAT(group[0]->flight_record(),
              AllOf(HasSubstr("worker \"worker0\" (incarnation 0x"), HasSubstr("calls that it has made, 1, "),
                    ContainsRegex("wait_at_gate\" to \"worker1\": sent, for .* deadline in "),
                    ContainsRegex("twice\" to \"worker1\": began .* ago, took .*, OK"),
                    ContainsRegex("refuse\" to \"worker1\": .*, NOT_FOUND"),
                    ContainsRegex("wait_at_gate\" to \"worker1\": began .* ago, open")));
  EXPECT_THAT(group[1]->flight_record(),
              AllOf(HasSubstr("calls that it serves, 1, "),
                    ContainsRegex("wait_at_gate\" from \"worker0\": running, for"),
                    ContainsRegex("twice\" from \"worker0\": began .* ago, queued .*, took .*, OK")));
  gate().set_value();
  open.wait();
}

TEST(AgentFlight, OffRecordsAndDumpsNothing) {
  const std::string directory = folder("off");
  RpcBackendOptions options = with_directory(directory);
  options.flight.records = 0;
  testing::Group group(2, options);
  gate() = Promise<void>();
  EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", 4), 8);
  EXPECT_THAT(group[0]->flight_record(),
              AllOf(HasSubstr("the last 0 of 0 recorded events"), Not(HasSubstr("twice"))));
}

TEST(AgentFlight, RingKeepsTheLastCalls) {
  RpcBackendOptions options;
  options.flight.records = 4;
  testing::Group group(2, options);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(group[0]->rpc_sync<&twice>("worker1", i), 2 * i);
  EXPECT_THAT(group[0]->flight_record(), HasSubstr("the last 4 of "));
  EXPECT_EQ(group[0]->services().recorder().capacity(), 4u);
}

// A store whose changes wait until two more dumps have been written, so that at least one was written during
// the change. Relaxed, so that ThreadSanitizer sees no order between the dumps and what the caller does next.
class DumpedStore : public store::ForwardingStore {
 public:
  DumpedStore(std::shared_ptr<Store> store, const std::atomic<int>& dumps)
      : ForwardingStore(std::move(store)), dumps_(dumps) {}

 private:
  absl::StatusOr<std::string> do_compare_set(absl::string_view key, absl::string_view expected,
                                             absl::string_view desired, absl::Time deadline) override {
    const int before = dumps_.load(std::memory_order_relaxed);
    while (dumps_.load(std::memory_order_relaxed) < before + 2) std::this_thread::yield();
    return ForwardingStore::do_compare_set(key, expected, desired, deadline);
  }

  const std::atomic<int>& dumps_;
};

TEST(AgentFlight, IsWrittenWhileAnOpenGroupAssignsTheId) {
  std::atomic<int> dumps{0};
  std::atomic<bool> stop{false};
  RpcBackendOptions options = with_directory(folder("joining"));
  options.store = std::make_shared<DumpedStore>(std::make_shared<store::HashStore>(), dumps);
  std::thread dumping([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      EXPECT_TRUE(dump_flight_records("the test asked").ok());
      dumps.fetch_add(1, std::memory_order_relaxed);
    }
  });
  const std::shared_ptr<Agent> agent = Agent::start("joining", -1, 0, options);
  EXPECT_EQ(agent->get_worker_info().id, 0);
  EXPECT_TRUE(eventually([&] {
    return absl::StrContains(content(file_of(options.flight.directory, agent)),
                             R"("worker":"joining","id":0)");
  }));
  agent->shutdown(/*graceful=*/false);
  stop = true;
  dumping.join();
}

}  // namespace
}  // namespace gradwire::rpc
