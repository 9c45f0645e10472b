// How jobs on several nodes are protected. The nodes are launchers on one machine.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/free_port.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/security/protection.h"

namespace gradwire::tests {
namespace {

class ProtectedNodes : public ::testing::Test {
 protected:
  std::unique_ptr<LaunchProcess> node(int rank, std::vector<std::string> options,
                                      const std::vector<std::string>& program = {
                                          "tests/launch/store_worker"}) {
    options.insert(options.begin(), {"--nnodes=2", absl::StrCat("--node_rank=", rank),
                                     "--master_addr=127.0.0.1", absl::StrCat("--master_port=", port_)});
    options.insert(options.end(), program.begin(), program.end());
    return std::make_unique<LaunchProcess>(std::move(options));
  }

  const int port_ = free_port();
};

TEST_F(ProtectedNodes, MeetWithTheSameTokenFile) {
  const std::string file = "--token_file=" + token_file("same", std::string(64, 'a'));
  auto first = node(0, {file}), second = node(1, {file});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(ProtectedNodes, WithAnotherTokenIsRefusedAndTheOthersGoOn) {
  auto first = node(0, {"--token_file=" + token_file("right", std::string(64, 'a'))});
  auto stranger = node(1, {"--token_file=" + token_file("wrong", std::string(64, 'b'))});
  EXPECT_EQ(stranger->wait(), 1);
  EXPECT_EQ(stranger->complaints().size(), 1u) << stranger->err();
  EXPECT_TRUE(absl::StrContains(stranger->err(), "cannot reach the job's store")) << stranger->err();
  EXPECT_TRUE(absl::StrContains(stranger->err(), "token")) << stranger->err();
  auto second = node(1, {"--token_file=" + token_file("right2", std::string(64, 'a'))});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST_F(ProtectedNodes, WithoutATokenIsRefusedByAJobThatHasOne) {
  auto first = node(0, {"--token_file=" + token_file("one", std::string(64, 'a'))});
  auto stranger = node(1, {});
  EXPECT_EQ(stranger->wait(), 1);
  EXPECT_TRUE(absl::StrContains(stranger->err(), "token")) << stranger->err();
  first->send(SIGTERM);
  EXPECT_EQ(first->wait(), 128 + SIGTERM) << first->err();
}

TEST_F(ProtectedNodes, OnThisHostNeedNoToken) {
  auto first = node(0, {}), second = node(1, {});
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
}

TEST(UnprotectedNodes, AreRefusedWhereOtherHostsCanConnect) {
  LaunchProcess launch({"--nnodes=2", "--rdzv_endpoint=192.0.2.1:29400", "true"});
  EXPECT_EQ(launch.wait(), 2);
  EXPECT_EQ(lines(launch.err()).size(), 1u) << launch.err();
  for (const char* part : {"192.0.2.1", "--token_file", "--make_token", "--certificate_file", "--insecure"}) {
    EXPECT_TRUE(absl::StrContains(launch.err(), part)) << launch.err();
  }
}

TEST(UnprotectedNodes, MayBeInsecure) {
  const std::string port = absl::StrCat("--master_port=", free_port());
  const auto node = [&](const char* rank) {
    return std::make_unique<LaunchProcess>(std::vector<std::string>{
        "--nnodes=2", rank, "--master_addr=0.0.0.0", port, "--insecure", "tests/launch/store_worker"});
  };
  auto first = node("--node_rank=0"), second = node("--node_rank=1");
  EXPECT_EQ(first->wait(), 0) << first->err();
  EXPECT_EQ(second->wait(), 0) << second->err();
  EXPECT_TRUE(absl::StrContains(first->err(), "the job is not protected")) << first->err();
}

}  // namespace
}  // namespace gradwire::tests
