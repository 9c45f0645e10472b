#include "gradwire/rpc/agent/transports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "gradwire/base/process/shortage.h"

namespace gradwire::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status works() { return absl::OkStatus(); }
absl::Status broken() { return absl::UnavailableError("seccomp forbids it"); }

using Names = std::vector<std::string>;

absl::StatusOr<Names> made(const Names& named, absl::FunctionRef<absl::Status()> check_shm) {
  auto loop = transport::EventLoop::create();
  if (!loop.ok()) return loop.status();
  RpcBackendOptions options;
  options.transports = named;
  auto transports = make_transports(options, "worker", *loop, check_shm);
  if (!transports.ok()) return transports.status();
  Names names;
  for (const auto& transport : *transports) names.push_back(transport->name());
  return names;
}

TEST(Transports, AreThoseThatAreNamedAndLoopback) {
  EXPECT_THAT(made({}, works).value(), ElementsAre("loopback", "shm", "tcp"));
  EXPECT_THAT(made({"tcp"}, works).value(), ElementsAre("loopback", "tcp"));
  EXPECT_THAT(made({"tcp", "shm"}, works).value(), ElementsAre("loopback", "tcp", "shm"));
  EXPECT_EQ(made({"pigeon"}, works).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Transports, SharedMemoryThatDoesNotWorkIsLeftOutBesideAnotherOne) {
  EXPECT_THAT(made({}, broken).value(), ElementsAre("loopback", "tcp"));
  EXPECT_THAT(made({"shm", "tcp"}, broken).value(), ElementsAre("loopback", "tcp"));
  EXPECT_THAT(made({"tcp"}, broken).value(), ElementsAre("loopback", "tcp"));
}

// Otherwise a worker that starts in a bad moment would do without shared memory until its end.
TEST(Transports, AShortageIsAnErrorBesideAnotherTransportToo) {
  const auto shortage = [] { return system_status("cannot create shared memory", EMFILE); };
  for (const Names& named : {Names{}, Names{"shm", "tcp"}, Names{"shm"}}) {
    const absl::Status status = made(named, shortage).status();
    EXPECT_TRUE(is_local_shortage(status)) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("RLIMIT_NOFILE"));
  }
  EXPECT_TRUE(made({"tcp"}, shortage).ok());
}

TEST(Transports, SharedMemoryThatDoesNotWorkIsAnErrorWithoutAnotherOne) {
  for (const Names& named : {Names{"shm"}, Names{"shm", "shm"}}) {
    const absl::Status status = made(named, broken).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(status.ToString(), HasSubstr("\"shm\" does not work on this machine"));
    EXPECT_THAT(status.ToString(), HasSubstr("seccomp forbids it"));
  }
}

}  // namespace
}  // namespace gradwire::rpc
