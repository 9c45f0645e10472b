#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/log_lines.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/device/ipc_travel.h"
#include "gradwire/tests/device/lag_device.h"
#include "gradwire/tests/device/lag_ipc.h"
#include "gradwire/tests/device_ipc/functions.h"
#include "gradwire/tests/rpc/server_process.h"

// The channel "ipc" between two processes.
namespace gradwire::rpc {
namespace {

using namespace ipc_test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor copied_to(int device, const at::Tensor& x) {
  return x.to(lag::device(device), /*non_blocking=*/true);
}

// This process is "client"; "worker" is another one.
class IpcProcess : public ::testing::Test {
 protected:
  IpcProcess() {
    lag::set_lag({});
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    const std::string where = absl::StrCat("file://", ::testing::TempDir(), "/", name);
    worker_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{"tests/device_ipc/ipc_worker", where, "worker", "1", "2"});
    RpcBackendOptions options;
    options.init_method = where;
    options.join_timeout = absl::Seconds(60);
    // With these times silence has no effect.
    options.heartbeat = {absl::Seconds(10), absl::Minutes(10), absl::Minutes(20)};
    client_ = Agent::start("client", 0, 2, options);
  }

  // Nothing of the other process is left here.
  void expect_nothing_left() {
    EXPECT_TRUE(eventually([&] {
      const AgentTables tables = client_->tables();
      return tables.open_transfers + tables.arrived_transfers + tables.unreported_transfers +
                 tables.refused_transfers + tables.sharing_probes ==
             0;
    })) << client_->tables().describe();
    EXPECT_TRUE(eventually([] {
      const lag::IpcCounts counts = lag::ipc_counts();
      return counts.made_events + counts.opened_events + counts.opened_memories == 0;
    })) << lag::ipc_counts().made_events
        << " " << lag::ipc_counts().opened_events << " " << lag::ipc_counts().opened_memories;
    EXPECT_TRUE(eventually([] { return lag::counts().blocks == 0; })) << lag::counts().blocks;
  }

  std::unique_ptr<ChildProcess> worker_;
  std::shared_ptr<Agent> client_;
};

TEST_F(IpcProcess, TensorsTravelBothWays) {
  ASSERT_TRUE(lag::warm_up_ipc(client_, "worker"));
  const int64_t bytes = static_cast<int64_t>(client_->statistics().bytes_sent);
  const int64_t waits = lag::counts().host_waits;
  std::vector<Future<at::Tensor>> results;
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 50; ++i) {
    const at::Tensor x = at::rand({10'000 + i});
    at::Tensor y = copied_to(0, x) + 1;
    results.push_back(client_->rpc_async<&scale>("worker", y, 3.0));
    y.zero_();
    expected.push_back((x + 1) * 3.0);
  }
  for (const Future<at::Tensor>& result : results) EXPECT_TRUE(result.result().ok());
  EXPECT_EQ(lag::counts().host_waits, waits);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(at::equal(results[i].wait().cpu(), expected[i]));
  // The bytes of the tensors, 40 kB each, were not sent.
  EXPECT_LT(static_cast<int64_t>(client_->statistics().bytes_sent) - bytes, 50 * 4'000);
  EXPECT_GT(client_->rpc_sync<&opened>("worker"), 0);
  results.clear();
  client_->shutdown();
  EXPECT_EQ(worker_->wait(), 0);
  EXPECT_EQ(lag::ipc_counts().made_events, 0);
}

TEST_F(IpcProcess, AReceiverThatIsKilledFreesTheMemory) {
  ASSERT_TRUE(lag::warm_up_ipc(client_, "worker"));
  std::vector<Future<at::Tensor>> calls;
  for (int i = 0; i < 20; ++i)
    calls.push_back(client_->rpc_async<&scale>("worker", copied_to(0, at::rand({5000})), 2.0));
  Future<void> death = client_->rpc_async<&die>("worker", copied_to(0, at::rand({5000})));
  for (int i = 0; i < 20; ++i)
    calls.push_back(client_->rpc_async<&scale>("worker", copied_to(0, at::rand({5000})), 2.0));
  EXPECT_EQ(death.result().code(), absl::StatusCode::kUnavailable) << death.result();
  for (const Future<at::Tensor>& call : calls) {
    const absl::Status status = call.result().status();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_EQ(worker_->wait(), -SIGKILL);
  calls.clear();
  expect_nothing_left();
  client_->shutdown(/*graceful=*/false);
}

TEST_F(IpcProcess, ASenderThatIsKilledIsForgotten) {
  ASSERT_TRUE(lag::warm_up_ipc(client_, "worker"));
  // Tensors of the worker arrive here.
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(client_->rpc_async<&echo>("worker", copied_to(0, at::rand({500}))).result().ok());
  EXPECT_GT(lag::ipc_counts().opened_memories, 0);
  std::vector<Future<at::Tensor>> calls;
  for (int i = 0; i < 20; ++i)
    calls.push_back(client_->rpc_async<&echo>("worker", copied_to(0, at::rand({5000}))));
  worker_->kill();
  for (const Future<at::Tensor>& call : calls) {
    const absl::Status status = call.result().status();
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable) << status;
  }
  EXPECT_EQ(worker_->wait(), -SIGKILL);
  const absl::Status later =
      client_->rpc_async<&echo>("worker", copied_to(0, at::rand({5}))).result().status();
  EXPECT_EQ(later.code(), absl::StatusCode::kUnavailable) << later;
  calls.clear();
  expect_nothing_left();
  client_->shutdown(/*graceful=*/false);
}

// Returns the lines about sharing that the client logs, with the default options, when it calls a worker
// whose driver differs: `variable` is set for its process.
std::vector<std::string> lines_about_sharing(const char* variable, const char* value) {
  const std::string where = absl::StrCat("file://", ::testing::TempDir(), "/", variable);
  ::setenv(variable, value, 1);
  ChildProcess worker({"tests/device_ipc/ipc_worker", where, "worker", "1", "2"});
  ::unsetenv(variable);
  RpcBackendOptions options;
  options.init_method = where;
  ::testing::internal::CaptureStderr();
  const std::shared_ptr<Agent> client = Agent::start("client", 0, 2, options);
  const int64_t copies = lag::ipc_counts().copies;
  const at::Tensor x = at::rand({1000});
  for (int i = 0; i < 5; ++i)
    EXPECT_TRUE(at::equal(client->rpc_sync<&echo>("worker", copied_to(0, x)).cpu(), x));
  EXPECT_EQ(lag::ipc_counts().copies, copies);
  client->shutdown();
  EXPECT_EQ(worker.wait(), 0);
  // The worker writes to the same stream.
  return captured_lines("worker \"client\" cannot share the memory");
}

// The other process names its devices differently, as one that sees other GPUs.
TEST(IpcVisibility, OneLineSaysThatTheOtherProcessDoesNotSeeTheDevice) {
  EXPECT_THAT(
      lines_about_sharing("GRADWIRE_LAG_IDENTITY", "OTHER-"),
      ElementsAre(AllOf(HasSubstr("cannot share the memory of lag:0 with worker \"worker\": the worker "
                                  "does not see this physical device"),
                        HasSubstr("copied through the host"))));
}

// The driver of the other process is the one that cannot.
TEST(IpcVisibility, OneLineSaysWhyTheOtherProcessCannotShareItsDevices) {
  EXPECT_THAT(
      lines_about_sharing("GRADWIRE_LAG_NO_SHARING", "1"),
      ElementsAre(HasSubstr("the worker does not see this physical device; it cannot share its lag:0: "
                            "the driver has no support for sharing")));
}

}  // namespace
}  // namespace gradwire::rpc
