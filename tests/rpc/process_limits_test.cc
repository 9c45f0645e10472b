// A worker in a process of its own that reaches a limit of the operating system.

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "gradwire/base/testing/limits.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/rpc/rpc.h"
#include "gradwire/tests/rpc/far_work.h"
#include "gradwire/tests/rpc/server_process.h"

namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ProcessLimits : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::internal::CaptureStderr(); }

  // Starts a server with this limit on the size of files, and joins.
  void start(std::optional<rlim_t> file_size = std::nullopt) {
    {
      const LimitScope limit(RLIMIT_FSIZE, file_size.value_or(RLIM_INFINITY));
      // It inherits the limit.
      server_ = std::make_unique<ServerProcess>(where_, "server", 1, 2, HeartbeatOptions(),
                                                "tests/rpc/torch_server");
    }
    RpcBackendOptions options;
    options.init_method = where_;
    options.join_timeout = absl::Seconds(60);
    init_rpc("client", 0, 2, options);
  }
  void expect_there_and_back(int64_t elements) {
    SCOPED_TRACE(elements);
    const at::Tensor x = at::full({elements}, static_cast<double>(elements % 251));
    EXPECT_TRUE(at::equal(rpc_sync<&far_work::identity>("server", x), x));
  }
  // Ends both processes, and returns the log of both.
  std::string end() {
    shutdown();
    EXPECT_EQ(server_->wait(), 0);
    return ::testing::internal::GetCapturedStderr();
  }

  const std::string where_ = absl::StrCat("file://", ::testing::TempDir(), "/",
                                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::unique_ptr<ServerProcess> server_;
};

TEST_F(ProcessLimits, WithoutDescriptorsEverythingGoesOnOverSharedMemory) {
  start();
  expect_there_and_back(10);
  std::atomic<bool> only_alive{true};
  const auto watch = Agent::current()->on_worker_change([&only_alive](const WorkerInfo&, WorkerState state) {
    if (state != WorkerState::kAlive) only_alive = false;
  });
  rpc_sync<&far_work::take_descriptors>("server");
  // Both directions need new segments of their arenas, which the server can only receive with its spare
  // descriptor, and cannot make.
  for (const int64_t elements : {10, 3'000, 50'000, 1'000'000, 16'000'000}) expect_there_and_back(elements);
  rpc_sync<&far_work::give_descriptors>("server");
  for (const int64_t elements : {10, 3'000, 50'000, 1'000'000, 16'000'000}) expect_there_and_back(elements);
  EXPECT_TRUE(only_alive);
  const std::string log = end();
  EXPECT_THAT(log, Not(HasSubstr("malformed packet")));
  EXPECT_THAT(log, Not(HasSubstr("no longer uses the transport")));
}

TEST_F(ProcessLimits, WithoutMemoryOnlyTheCallThatNeedsItFails) {
  start();
  expect_there_and_back(10);
  std::atomic<bool> only_alive{true};
  const auto watch = Agent::current()->on_worker_change([&only_alive](const WorkerInfo&, WorkerState state) {
    if (state != WorkerState::kAlive) only_alive = false;
  });
  const at::Tensor large = at::full({16'000'000}, 1.0);
  rpc_sync<&far_work::take_memory>("server");
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = status_of([&] { rpc_sync<&far_work::identity>("server", large); });
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("RLIMIT_AS"));
    for (const int64_t elements : {10, 3'000, 50'000}) expect_there_and_back(elements);
  }
  rpc_sync<&far_work::give_memory>("server");
  EXPECT_TRUE(at::equal(rpc_sync<&far_work::identity>("server", large), large));
  EXPECT_TRUE(only_alive);
  EXPECT_THAT(end(), Not(HasSubstr("no longer uses the transport")));
}

TEST_F(ProcessLimits, FilesSmallerThanATensorLetItTravelThroughTheRing) {
  start(512 << 10);
  for (const int64_t elements : {10, 50'000, 10'000'000}) expect_there_and_back(elements);
  EXPECT_THAT(end(), Not(HasSubstr("does not work on this machine")));
}

TEST_F(ProcessLimits, FilesSmallerThanARingLetTheWorkerUseTcp) {
  start(64 << 10);
  for (const int64_t elements : {10, 50'000, 10'000'000}) expect_there_and_back(elements);
  EXPECT_THAT(end(), HasSubstr("the limit is RLIMIT_FSIZE = 65536"));
}

}  // namespace
}  // namespace gradwire::rpc
