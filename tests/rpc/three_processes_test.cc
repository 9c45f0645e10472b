// Three processes: timeouts that change, barriers, modules as arguments, calls in TorchScript, profiles.

#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/rpc/script.h"
#include "gradwire/rpc/stock_modules.h"
#include "gradwire/tests/rpc/far_work.h"
#include "gradwire/tests/rpc/server_process.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Names = std::vector<std::string>;

// Ends only by an event, not by the time.
constexpr double kLong = 600;

class ThreeProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    RpcBackendOptions options;
    options.init_method = init_method_;
    options.join_timeout = absl::Seconds(60);
    init_rpc("client", 0, 3, options);
  }
  void TearDown() override {
    if (ended_) return;
    shutdown();
    EXPECT_EQ(server1_.wait(), 0);
    EXPECT_EQ(server2_.wait(), 0);
  }
  // For a test that has killed a server.
  void end_without_servers() {
    shutdown(/*graceful=*/false);
    ended_ = true;
  }
  static Future<std::string> meet(const std::string& worker, const Names& names, double seconds = kLong) {
    return rpc_async<&far_work::meet>(Destination(worker).with_timeout(absl::InfiniteDuration()), names,
                                      seconds);
  }

  const std::string init_method_ = absl::StrCat(
      "file://", ::testing::TempDir(), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
  ServerProcess server1_{init_method_, "server1", 1, 3, {}, "tests/rpc/torch_server"};
  ServerProcess server2_{init_method_, "server2", 2, 3, {}, "tests/rpc/torch_server"};
  bool ended_ = false;
};

TEST_F(ThreeProcesses, TimeoutOfOneWorkerChangesAlone) {
  EXPECT_EQ(rpc_sync<&far_work::timeout>("server1"), 60);
  rpc_sync<&far_work::set_timeout>("server1", 0.2);
  EXPECT_EQ(rpc_sync<&far_work::timeout>("server1"), 0.2);
  EXPECT_EQ(rpc_sync<&far_work::timeout>("server2"), 60);
  EXPECT_EQ(get_rpc_timeout(), absl::Seconds(60));
  EXPECT_THAT(rpc_sync<&far_work::wait_for>("server1", "server2"), StartsWith("DEADLINE_EXCEEDED"));
  // The barrier has no timeout of its own either.
  EXPECT_THAT(rpc_sync<&far_work::meet>("server1", Names{}, -1.0), StartsWith("DEADLINE_EXCEEDED"));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  rpc_sync<&far_work::set_timeout>("server1", kInfinity);
  EXPECT_EQ(rpc_sync<&far_work::timeout>("server1"), kInfinity);
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([] { rpc_sync<&far_work::set_timeout>("server1", 0.0); })));
}

TEST_F(ThreeProcesses, BarrierOfSomeProcessesNeedsOnlyThem) {
  const Names servers = {"server2", "server1"};
  const Future<std::string> first = meet("server1", servers), second = meet("server2", servers);
  EXPECT_EQ(first.wait(), "OK");
  EXPECT_EQ(second.wait(), "OK");
  const Future<std::string> with_client = meet("server2", {"client", "server2"});
  rpc_barrier({"server2", "client"}, absl::Seconds(kLong));
  EXPECT_EQ(with_client.wait(), "OK");

  // One that gives up ends the barrier for the other, and the next barrier works.
  const std::string alone = meet("server2", servers, 0.2).wait();
  EXPECT_THAT(alone, StartsWith("DEADLINE_EXCEEDED"));
  EXPECT_THAT(alone, HasSubstr("worker \"server1\""));
  EXPECT_THAT(meet("server1", servers).wait(), HasSubstr("worker \"server2\" gave up"));
  const Future<std::string> again = meet("server1", servers), also = meet("server2", servers);
  EXPECT_EQ(again.wait(), "OK");
  EXPECT_EQ(also.wait(), "OK");

  const Future<std::string> all1 = meet("server1", {}), all2 = meet("server2", {});
  rpc_barrier({}, absl::Seconds(kLong));
  EXPECT_EQ(all1.wait(), "OK");
  EXPECT_EQ(all2.wait(), "OK");
}

// The kill may come before or after the arrivals: the result is the same.
TEST_F(ThreeProcesses, BarrierEndsWhenAProcessIsKilled) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Future<std::string> waiting = meet("server1", {"server1", "server2"}, kInfinity);
  server2_.kill();
  const std::string status = waiting.wait();
  EXPECT_THAT(status, StartsWith("UNAVAILABLE"));
  EXPECT_THAT(status, HasSubstr("server2"));
  EXPECT_TRUE(absl::IsUnavailable(status_of([] { rpc_barrier({}, absl::InfiniteDuration()); })));
  end_without_servers();
}

TEST_F(ThreeProcesses, RemoteModuleIsAnArgument) {
  const far_work::Linear module("server1", 4, 3);
  const at::Tensor x = at::rand({2, 4});
  const std::map<std::string, at::Tensor> state = module.state_dict();
  const at::Tensor expected = at::linear(x, state.at("weight"), state.at("bias"));
  for (const char* worker : {"client", "server1", "server2"}) {
    EXPECT_TRUE(at::equal(rpc_sync<&far_work::through>(worker, module, x).detach(), expected)) << worker;
  }
}

TEST_F(ThreeProcesses, ScriptCallsTheOtherProcesses) {
  const at::Tensor x = at::ones({3});
  EXPECT_TRUE(
      at::equal(rpc_sync<at::Tensor>("server1", Script("far_work.far"), "server2", "server1", x), 4 * x));
  far_work::register_scripts();
  EXPECT_TRUE(
      at::equal(rpc_sync<at::Tensor>("client", Script("far_work.far"), "server1", "server2", x), 4 * x));
  EXPECT_TRUE(
      at::equal(rpc_sync<at::Tensor>("server2", Script("far_work.far"), "server1", "client", x), 4 * x));
}

TEST_F(ThreeProcesses, ProfilerGetsTheEventsOfTheOtherProcess) {
  namespace impl = torch::profiler::impl;
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {impl::ActivityType::CPU};
  torch::autograd::profiler::prepareProfiler(config, activities);
  torch::autograd::profiler::enableProfiler(config, activities);
  rpc_sync<&far_work::multiply>("server1", at::ones({3}), "server2");
  std::map<std::string, std::string> backends;
  const auto profile = torch::autograd::profiler::disableProfiler();
  for (const auto& event : profile->events()) {
    backends.emplace(event.name(), event.backend());
  }
  const std::string call = "rpc_sync#far_work::multiply(client -> server1)";
  EXPECT_TRUE(backends.contains(call));
  for (const char* work :
       {"far_work::multiply", "aten::mul", "rpc_sync#far_work::multiply_here(server1 -> server2)"}) {
    const auto found = backends.find(absl::StrCat(call, "#remote_op: ", work));
    ASSERT_NE(found, backends.end()) << work;
    EXPECT_EQ(found->second, "server1") << work;
  }
  // Afterwards calls ask for no events.
  EXPECT_EQ(rpc_sync<&far_work::multiply_here>("server1", at::ones({3})).sum().item<double>(), 3);
}

}  // namespace
}  // namespace gradwire::rpc
