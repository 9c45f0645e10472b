#include "tools/launch_info.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "base/error.h"

namespace gradwire {
namespace {

class LaunchInfoFromEnv : public testing::Test {
 protected:
  void SetUp() override {
    for (const auto& [name, value] : kAll) setenv(name.c_str(), value.c_str(), 1);
  }

  absl::Status failure() {
    try {
      LaunchInfo::from_env();
    } catch (const Error& error) {
      return error.status();
    }
    return absl::OkStatus();
  }

  const std::map<std::string, std::string> kAll = {
      {"RANK", "5"},           {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},     {"ROLE_NAME", "worker"}, {"ROLE_RANK", "3"},  {"MASTER_ADDR", "host"},
      {"MASTER_PORT", "29500"}};
};

TEST_F(LaunchInfoFromEnv, AllIsRead) {
  const LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.group_rank, 1);
  EXPECT_EQ(info.role, "worker");
  EXPECT_EQ(info.role_rank, 3);
  EXPECT_EQ(info.master_addr, "host");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.device(), "cpu");
}

TEST_F(LaunchInfoFromEnv, EachMissingVariableIsNamed) {
  for (const auto& [name, value] : kAll) {
    unsetenv(name.c_str());
    const absl::Status status = failure();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << name;
    EXPECT_NE(status.message().find("variable " + name + ":"), absl::string_view::npos) << status;
    setenv(name.c_str(), value.c_str(), 1);
  }
}

TEST_F(LaunchInfoFromEnv, AllMissingVariablesAreNamedAtOnce) {
  unsetenv("RANK");
  unsetenv("MASTER_PORT");
  EXPECT_NE(failure().message().find("RANK, MASTER_PORT"), absl::string_view::npos) << failure();
}

TEST_F(LaunchInfoFromEnv, WrongNumbersAreRefusedByName) {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "8"},
                                                                      {"LOCAL_RANK", "4"},
                                                                      {"WORLD_SIZE", "many"},
                                                                      {"MASTER_PORT", "70000"},
                                                                      {"ROLE_RANK", "-1"}}) {
    setenv(name.c_str(), value.c_str(), 1);
    const absl::Status status = failure();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name + "="), absl::string_view::npos) << status;
    setenv(name.c_str(), kAll.at(name).c_str(), 1);
  }
}

}  // namespace
}  // namespace gradwire
