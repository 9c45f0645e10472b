#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gradwire/base/metrics/families.h"
#include "gradwire/base/metrics/testing/strict_text.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/core/agent_statistics.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/testing/group.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/http/testing/http_client.h"

// The metrics of workers that make real calls, and how they are served.
namespace gradwire::rpc {
namespace {

using metrics::testing::TextFamilies;
using metrics::testing::TextFamily;
using transport::testing::http_get;

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)
int64_t complain() { throw std::runtime_error("no"); }
GRADWIRE_RPC(complain)
int64_t read_twice(const std::string& text) { return 2 * static_cast<int64_t>(text.size()); }
GRADWIRE_RPC(read_twice)

Promise<int64_t>& held() {
  static auto* const promise = new Promise<int64_t>;
  return *promise;
}
Future<int64_t> hold() { return held().future(); }
GRADWIRE_RPC(hold)

struct Thing {
  explicit Thing(int64_t value) : value(value) {}
  int64_t value;
};
GRADWIRE_RPC_CLASS(Thing, int64_t)

TextFamilies parsed(const std::string& text) {
  absl::StatusOr<TextFamilies> families = metrics::testing::parse_strictly(text);
  EXPECT_TRUE(families.ok()) << families.status() << "\n" << text;
  return families.ok() ? *families : TextFamilies();
}
TextFamilies metrics_of(const std::shared_ptr<Agent>& agent) { return parsed(agent->metrics_text()); }
// The same after the calls that the agent has answered are counted, which happens after the answer was sent.
TextFamilies metrics_of_idle(const std::shared_ptr<Agent>& agent) {
  EXPECT_TRUE(eventually([&] { return agent->tables().served_calls == 0; }));
  return metrics_of(agent);
}

// The sum of the samples whose function ends with `function` and that have these labels.
double count(const TextFamilies& families, const std::string& family, const std::string& function,
             std::map<std::string, std::string> labels = {}, const std::string& suffix = "") {
  double sum = 0;
  const auto found = families.find(family);
  if (found == families.end()) return -1;
  for (const metrics::testing::TextSample& sample : found->second.samples) {
    const auto name = sample.labels.find("function");
    if (name == sample.labels.end() || !absl::EndsWith(name->second, function)) continue;
    bool matches = absl::EndsWith(sample.name, suffix);
    for (const auto& [label, value] : labels) {
      const auto has = sample.labels.find(label);
      matches &= has != sample.labels.end() && has->second == value;
    }
    if (matches) sum += sample.value;
  }
  return sum;
}
constexpr char kMade[] = "gradwire_rpc_calls_made_total";
constexpr char kServed[] = "gradwire_rpc_calls_served_total";

TEST(AgentMetrics, CountsCallsOfBothSides) {
  testing::Group group(2);
  for (int i = 0; i < 5; ++i) group[0]->rpc_sync<&add>("worker1", 1, 2);
  EXPECT_FALSE(thrown_by([&] { group[0]->rpc_sync<&complain>("worker1"); }).ok());
  group[1]->rpc_sync<&add>("worker1", 1, 2);

  const TextFamilies caller = metrics_of(group[0]);
  EXPECT_EQ(count(caller, kMade, "add", {{"worker", "worker0"}, {"peer", "worker1"}, {"code", "OK"}}), 5);
  EXPECT_EQ(count(caller, kMade, "complain", {{"peer", "worker1"}, {"code", "UNKNOWN"}}), 1);
  EXPECT_EQ(count(caller, "gradwire_rpc_call_seconds", "add", {}, "_count"), 5);
  EXPECT_GT(count(caller, "gradwire_rpc_call_seconds", "add", {}, "_sum"), 0);

  const TextFamilies callee = metrics_of_idle(group[1]);
  EXPECT_EQ(count(callee, kServed, "add", {{"worker", "worker1"}, {"peer", "worker0"}, {"code", "OK"}}), 5);
  EXPECT_EQ(count(callee, kServed, "add", {{"peer", "worker1"}, {"code", "OK"}}), 1);
  EXPECT_EQ(count(callee, kServed, "complain", {{"code", "UNKNOWN"}}), 1);
  EXPECT_EQ(count(callee, "gradwire_rpc_queue_seconds", "add", {}, "_count"), 6);
  EXPECT_EQ(count(callee, "gradwire_rpc_service_seconds", "add", {}, "_count"), 6);
  EXPECT_GT(count(callee, "gradwire_rpc_service_seconds", "add", {}, "_sum"), 0);
}

TEST(AgentMetrics, SaysTheSameAsStatisticsAndTables) {
  testing::Group group(2);
  group[0]->rpc_sync<&read_twice>("worker1", std::string(10'000, 'x'));
  {
    const RRef<Thing> thing = group[0]->remote<Thing>("worker1", 1);
    const Future<int64_t> waiting = group[0]->rpc_async<&hold>("worker1");
    ASSERT_TRUE(eventually([&] {
      return metrics_of(group[1]).at("gradwire_rpc_served_calls").value({}) == 1 &&
             metrics_of(group[0]).at("gradwire_rpc_rrefs_held").value({}) == 1;
    }));
    const TextFamilies caller = metrics_of(group[0]);
    EXPECT_EQ(caller.at("gradwire_rpc_pending_calls").value({}), 1);
    EXPECT_EQ(caller.at("gradwire_rpc_table_entries").value({{"table", "pending_calls"}}), 1);
    EXPECT_EQ(metrics_of(group[1]).at("gradwire_rpc_rrefs_owned").value({}), 1);
    EXPECT_GE(caller.at("gradwire_rpc_bytes_sent_total").value({}), 10'000);
    EXPECT_LE(caller.at("gradwire_rpc_bytes_sent_total").value({}),
              static_cast<double>(group[0]->statistics().bytes_sent));
    EXPECT_EQ(caller.at("gradwire_rpc_workers").value({{"state", "alive"}}), 2);
    EXPECT_EQ(caller.at("gradwire_rpc_workers").value({{"state", "dead"}}), 0);
    EXPECT_GE(caller.at("gradwire_pool_threads").value({}), 1);
    held().set_value(1);
    waiting.wait();
  }
}

TEST(AgentMetrics, FlowWaitsAreMeasured) {
  RpcBackendOptions options;
  options.flow.max_calls = 1;
  testing::Group group(2, options);
  EXPECT_EQ(metrics_of(group[0]).count("gradwire_rpc_flow_wait_seconds"), 0u);
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(group[0]->rpc_async<&add>("worker1", 1, 1));
  for (const Future<int64_t>& call : calls) call.wait();
  const TextFamilies families = metrics_of(group[0]);
  ASSERT_EQ(families.count("gradwire_rpc_flow_wait_seconds"), 1u);
  EXPECT_GE(families.at("gradwire_rpc_flow_wait_seconds").value({{"peer", "worker1"}}, "_count"), 1);
}

TEST(AgentMetrics, StoreCallsOfTheAgentAreCounted) {
  testing::Group group(2);
  const TextFamilies families = metrics_of(group[0]);
  EXPECT_GE(families.at("gradwire_store_calls_total").sum({{"code", "OK"}}), 1);
  EXPECT_GE(families.at("gradwire_store_call_seconds").sum({}, "_count"), 1);
}

// The new incarnation has a new peer and new connections.
TEST(AgentMetrics, RestartedWorkerContinuesItsSeries) {
  constexpr absl::Duration kTimeout = absl::Seconds(30);
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  const std::shared_ptr<Agent> caller = Agent::start("caller", -1, 0, options);
  std::shared_ptr<Agent> ps = Agent::start("ps", -1, 0, options);
  caller->wait_for_worker("ps", kTimeout);
  caller->rpc_sync<&add>("ps", 1, 2);
  ps->rpc_sync<&add>("caller", 1, 2);
  ps->shutdown(/*graceful=*/false);
  ASSERT_TRUE(eventually([&] { return caller->worker_state("ps") == WorkerState::kLeft; }));
  EXPECT_EQ(status_of([&] { caller->rpc_sync<&add>("ps", 1, 2); }).code(), absl::StatusCode::kUnavailable);
  ps = Agent::start("ps", -1, 0, options);
  caller->wait_for_worker("ps", kTimeout);
  ASSERT_TRUE(eventually([&] { return caller->worker_state("ps") == WorkerState::kAlive; }));
  caller->rpc_sync<&add>("ps", 1, 2);
  ps->rpc_sync<&add>("caller", 1, 2);
  const TextFamilies families = metrics_of_idle(caller);
  EXPECT_EQ(count(families, kMade, "add", {{"peer", "ps"}, {"code", "OK"}}), 2);
  EXPECT_EQ(count(families, kMade, "add", {{"peer", "ps"}, {"code", "UNAVAILABLE"}}), 1);
  EXPECT_EQ(count(families, kServed, "add", {{"peer", "ps"}, {"code", "OK"}}), 2);
  EXPECT_EQ(count(metrics_of_idle(ps), kServed, "add", {{"peer", "caller"}}), 1);
  ps->shutdown(true, kTimeout);
  caller->shutdown(true, kTimeout);
}

TEST(AgentMetrics, CallsThatTheEndOfTheGroupEndsAreCounted) {
  testing::Group group(2);
  held() = Promise<int64_t>();
  const Future<int64_t> waiting = group[0]->rpc_async<&hold>("worker1");
  ASSERT_TRUE(eventually([&] { return group[1]->tables().served_calls == 1; }));
  group.kill(0);
  EXPECT_FALSE(status_of([&] { waiting.wait(); }).ok());
  EXPECT_EQ(count(metrics_of(group[0]), kMade, "hold"), 1);
  EXPECT_EQ(count(metrics_of(group[0]), kMade, "hold", {{"code", "OK"}}), 0);
  // Its handler ends when its caller and its connection are gone.
  held().set_value(1);
  EXPECT_TRUE(eventually([&] { return count(metrics_of(group[1]), kServed, "hold") == 1; }));
}

TEST(AgentMetrics, CanBeTurnedOff) {
  RpcBackendOptions options;
  options.metrics = false;
  testing::Group group(2, options);
  group[0]->rpc_sync<&add>("worker1", 1, 2);
  EXPECT_FALSE(status_of([&] { group[0]->rpc_sync<&complain>("worker1"); }).ok());
  const TextFamilies families = metrics_of(group[0]);
  EXPECT_EQ(families.count(kMade), 0u);
  EXPECT_EQ(metrics_of(group[1]).count(kServed), 0u);
  EXPECT_EQ(families.count("gradwire_rpc_call_seconds"), 0u);
  // The values that the agent counts anyway are there.
  EXPECT_EQ(families.at("gradwire_rpc_pending_calls").value({}), 0);
}

TEST(AgentMetrics, EveryFamilyInTheTextIsInTheTable) {
  testing::Group group(1);
  group[0]->rpc_sync<&add>("worker0", 1, 2);
  std::set<std::string> known;
  for (const metrics::Family& family : metrics::all_families()) known.insert(std::string(family.name));
  for (const auto& [name, family] : metrics_of(group[0])) EXPECT_EQ(known.count(name), 1u) << name;
}

TEST(AgentMetrics, AreServedOverHttp) {
  RpcBackendOptions options;
  options.metrics_address = "127.0.0.1:0";
  testing::Group group(2, options);
  group[0]->rpc_sync<&add>("worker1", 1, 2);
  const auto answer = http_get(group[0]->metrics_address(), "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(count(parsed(answer.body), kMade, "add", {{"worker", "worker0"}}), 1);
  EXPECT_EQ(http_get(group[1]->metrics_address(), "/healthz").body, "ok\n");
  EXPECT_NE(group[0]->metrics_address(), group[1]->metrics_address());
  const std::string address = group[0]->metrics_address();
  group.shut_down();
  EXPECT_EQ(http_get(address, "/metrics").status, 0);
}

TEST(AgentMetrics, AreReadWhileTheGroupForms) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  RpcBackendOptions served = options;
  // The test's own folder may have too long a name for a socket.
  std::string folder = "/tmp/gradwire_forming_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string address = "unix:" + folder + "/a";
  served.metrics_address = address;
  std::shared_ptr<Agent> first;
  std::thread starting([&] { first = Agent::start("first", 0, 2, served); });
  std::atomic<bool> stop{false};
  std::atomic<int> pages{0};
  std::thread reader([&] {
    while (!stop.load()) {
      const auto answer = http_get(address, "/metrics");
      if (answer.status != 200) continue;
      EXPECT_EQ(parsed(answer.body).at("gradwire_agent_info").samples.size(), 1u);
      ++pages;
    }
  });
  while (pages.load() == 0) std::this_thread::yield();
  const std::shared_ptr<Agent> second = Agent::start("second", 1, 2, options);
  starting.join();
  const int joined = pages.load();
  while (pages.load() == joined) std::this_thread::yield();
  stop = true;
  reader.join();
  first->shutdown(/*graceful=*/false);
  second->shutdown(/*graceful=*/false);
  // The server has removed its socket.
  EXPECT_EQ(rmdir(folder.c_str()), 0);
}

TEST(AgentMetrics, AreNotServedUnlessAsked) {
  testing::Group group(1);
  EXPECT_EQ(group[0]->metrics_address(), "");
}

TEST(AgentMetrics, EnvironmentNamesTheAddress) {
  setenv("GRADWIRE_METRICS_ADDRESS", "127.0.0.1:0", 1);
  {
    testing::Group group(1);
    EXPECT_EQ(http_get(group[0]->metrics_address(), "/metrics").status, 200);
  }
  setenv("GRADWIRE_METRICS_ADDRESS", "not an address", 1);
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  const absl::Status status = status_of([&] { Agent::start("alone", 0, 1, options); });
  unsetenv("GRADWIRE_METRICS_ADDRESS");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("not an address"));
}

TEST(AgentMetrics, OtherHostsNeedConsent) {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  options.metrics_address = "0.0.0.0:0";
  const absl::Status status = status_of([&] { Agent::start("alone", 0, 1, options); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("metrics_insecure"));
  options.store = std::make_shared<store::HashStore>();
  options.metrics_insecure = true;
  EXPECT_NE(Agent::start("alone", 0, 1, options)->metrics_address(), "");
}

TEST(AgentMetrics, AreReadWhileCallsRunAndTheGroupEnds) {
  RpcBackendOptions options;
  options.metrics_address = "127.0.0.1:0";
  testing::Group group(2, options);
  const std::string address = group[1]->metrics_address();
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop.load()) {
      const auto answer = http_get(address, "/metrics");
      if (answer.status == 200) parsed(answer.body);
    }
  });
  for (int i = 0; i < 200; ++i) group[0]->rpc_sync<&add>("worker1", 1, 2);
  group.shut_down();
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace gradwire::rpc
