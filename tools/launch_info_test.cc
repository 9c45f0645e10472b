#include "gradwire/tools/launch_info.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "gradwire/base/error.h"
#include "gradwire/tools/launch/process/error_file.h"

namespace gradwire {
namespace {

class LaunchInfoFromEnv : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kOther) unsetenv(name);
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
  static constexpr const char* kOther[] = {"GROUP_WORLD_SIZE",
                                           "ROLE_WORLD_SIZE",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_MAX_RESTARTS",
                                           "TORCHELASTIC_ERROR_FILE",
                                           "GRADWIRE_ROUND",
                                           "GRADWIRE_WORKER_NAME",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "SLURM_JOB_ID",
                                           "SLURM_STEP_ID",
                                           "SLURM_STEP_NUM_NODES",
                                           "SLURM_STEP_NUM_TASKS",
                                           "SLURM_STEP_TASKS_PER_NODE",
                                           "SLURM_NODEID",
                                           "SLURM_PROCID",
                                           "SLURM_LOCALID"};

  void set_only(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : kAll) unsetenv(name.c_str());
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }
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
#ifndef GRADWIRE_CUDA
  EXPECT_EQ(info.device(), "cpu");
#endif
  EXPECT_EQ(info.name(), "worker3");
  EXPECT_EQ(info.group_world_size, 0);
  EXPECT_EQ(info.run_id, "");
}

TEST_F(LaunchInfoFromEnv, WhatOnlyLaunchersOfTodaySayIsRead) {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"GROUP_WORLD_SIZE", "2"},
                                                                      {"ROLE_WORLD_SIZE", "6"},
                                                                      {"TORCHELASTIC_RUN_ID", "job"},
                                                                      {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                                      {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                                                      {"GRADWIRE_ROUND", "4"},
                                                                      {"GRADWIRE_WORKER_NAME", "w5"}}) {
    setenv(name.c_str(), value.c_str(), 1);
  }
  const LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.group_world_size, 2);
  EXPECT_EQ(info.role_world_size, 6);
  EXPECT_EQ(info.run_id, "job");
  EXPECT_EQ(info.restart_count, 1);
  EXPECT_EQ(info.max_restarts, 3);
  EXPECT_EQ(info.round, 4);
  EXPECT_EQ(info.worker_name, "w5");
  EXPECT_EQ(info.name(), "w5");
  setenv("GRADWIRE_ROUND", "x", 1);
  EXPECT_EQ(failure().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LaunchInfoFromEnv, MpirunSaysRanksAndNoStore) {
  set_only({{"OMPI_COMM_WORLD_RANK", "5"},
            {"OMPI_COMM_WORLD_SIZE", "6"},
            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 6);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.group_rank, -1);
  EXPECT_EQ(info.name(), "default5");
  EXPECT_EQ(info.role_world_size, 6);
  EXPECT_EQ(info.master_addr, "");
  EXPECT_EQ(info.master_port, 0);
  setenv("MASTER_ADDR", "h", 1);
  setenv("MASTER_PORT", "77", 1);
  info = LaunchInfo::from_env();
  EXPECT_EQ(info.master_addr, "h");
  EXPECT_EQ(info.master_port, 77);
  setenv("OMPI_COMM_WORLD_RANK", "6", 1);
  EXPECT_NE(failure().message().find("OMPI_COMM_WORLD_RANK=6"), absl::string_view::npos) << failure();
}

TEST_F(LaunchInfoFromEnv, SrunSaysTheNodesToo) {
  const std::map<std::string, std::string> step = {
      {"SLURM_JOB_ID", "9"},         {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_NODES", "3"},
      {"SLURM_STEP_NUM_TASKS", "7"}, {"SLURM_NODEID", "2"},  {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
      {"SLURM_PROCID", "6"},         {"SLURM_LOCALID", "2"}};
  set_only(step);
  LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.rank, 6);
  EXPECT_EQ(info.world_size, 7);
  EXPECT_EQ(info.local_rank, 2);
  EXPECT_EQ(info.local_world_size, 3);
  EXPECT_EQ(info.group_rank, 2);
  EXPECT_EQ(info.group_world_size, 3);
  EXPECT_EQ(info.run_id, "9");
  setenv("SLURM_STEP_TASKS_PER_NODE", "nonsense", 1);
  EXPECT_EQ(LaunchInfo::from_env().local_world_size, 0);
  // The variables of a batch script are not those of a task.
  unsetenv("SLURM_STEP_ID");
  EXPECT_NE(failure().message().find("RANK, WORLD_SIZE"), absl::string_view::npos) << failure();
}

// Runs `body` in a child whose error file is `path` and returns how it ended.
template <class Body>
int run_child(const std::string& path, Body body) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
    // The last handler of the chain prints to standard error, which the output of the test does not need.
    close(STDERR_FILENO);
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(LaunchInfoFromEnv, UncaughtErrorIsLeftForTheLauncher) {
  const std::string path = ::testing::TempDir() + "/uncaught.json";
  const int status = run_child(path, []() noexcept {
    LaunchInfo::from_env();
    throw_if_error(with_worker(absl::UnavailableError("the peer has left"), "trainer1"));
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  absl::StatusOr<tools::ErrorRecord> record = tools::read_error_file(path);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_EQ(record->message, "UNAVAILABLE: the peer has left [worker \"trainer1\"]");
  ASSERT_TRUE(record->time.has_value());
  EXPECT_LT(absl::AbsDuration(*record->time - absl::Now()), absl::Minutes(5));
}

TEST_F(LaunchInfoFromEnv, ChildOfTheWorkerLeavesNothing) {
  const std::string path = ::testing::TempDir() + "/grandchild.json";
  run_child(path, [] {
    LaunchInfo::from_env();
    const pid_t child = fork();
    if (child == 0) []() noexcept { throw_if_error(absl::InternalError("not the worker's")); }();
    int status = 0;
    waitpid(child, &status, 0);
  });
  EXPECT_EQ(tools::read_error_file(path).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LaunchInfoFromEnv, CaughtErrorIsRecordedWhereTheProgramSaysSo) {
  const std::string path = ::testing::TempDir() + "/caught.json";
  EXPECT_EQ(run_child(path,
                      [] {
                        try {
                          throw std::out_of_range("at 3");
                        } catch (const std::exception& error) {
                          record_error(error);
                        }
                      }),
            0);
  EXPECT_EQ(tools::read_error_file(path)->message, "std::out_of_range: at 3");
  // Without a launcher this does nothing.
  record_error(std::runtime_error("unseen"));
}

TEST_F(LaunchInfoFromEnv, RankWorldSizeAndStoreAreEnough) {
  set_only({{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "host"}, {"MASTER_PORT", "29500"}});
  LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.world_size, 3);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.local_world_size, 0);
  EXPECT_EQ(info.group_rank, -1);
  EXPECT_EQ(info.name(), "default2");
  EXPECT_EQ(info.role_world_size, 3);
  EXPECT_EQ(info.master_addr, "host");
  EXPECT_EQ(info.master_port, 29500);
  // Variables that are set are used.
  setenv("LOCAL_RANK", "1", 1);
  setenv("ROLE_NAME", "trainer", 1);
  info = LaunchInfo::from_env();
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.name(), "trainer2");
  setenv("LOCAL_WORLD_SIZE", "1", 1);
  EXPECT_EQ(failure().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(LaunchInfoFromEnv, PmiWithoutLocalRanksIsEnough) {
  set_only({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  const LaunchInfo info = LaunchInfo::from_env();
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.world_size, 2);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.name(), "default1");
}

TEST_F(LaunchInfoFromEnv, EachMissingVariableIsNamed) {
  for (const char* needed : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    const std::string name = needed, value = kAll.at(needed);
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
