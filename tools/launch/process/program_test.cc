#include "gradwire/tools/launch/process/program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

namespace gradwire::tools {
namespace {

using Argv = std::vector<std::string>;

class ResolveCommand : public ::testing::Test {
 protected:
  ResolveCommand() : directory_(::testing::TempDir() + "/resolve") {
    mkdir(directory_.c_str(), 0755);
    write("python3", 0755);
    write("train", 0755);
    write("train.py", 0755);
    write("data", 0644);
  }

  void write(const std::string& name, mode_t mode) {
    std::ofstream(directory_ + "/" + name) << "#!/bin/sh\n";
    chmod((directory_ + "/" + name).c_str(), mode);
  }

  absl::StatusOr<Command> resolve(LaunchOptions options) const {
    return resolve_command(options, "/nowhere:" + directory_, "python3");
  }

  const std::string directory_;
};

TEST_F(ResolveCommand, ExecutableRunsAsItIs) {
  absl::StatusOr<Command> command = resolve({.program = directory_ + "/train", .program_args = {"a", "b"}});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->path, directory_ + "/train");
  EXPECT_EQ(command->argv, (Argv{directory_ + "/train", "a", "b"}));
}

TEST_F(ResolveCommand, NameWithoutSlashIsLookedUpInPath) {
  absl::StatusOr<Command> command = resolve({.no_python = true, .program = "train"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->path, directory_ + "/train");
  EXPECT_EQ(command->argv, Argv{"train"});
}

TEST_F(ResolveCommand, PythonScriptRunsByPython) {
  absl::StatusOr<Command> command = resolve({.program = directory_ + "/train.py", .program_args = {"a"}});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->path, directory_ + "/python3");
  EXPECT_EQ(command->argv, (Argv{"python3", "-u", directory_ + "/train.py", "a"}));
}

TEST_F(ResolveCommand, PythonScriptRunsAsItIsWithNoPython) {
  absl::StatusOr<Command> command = resolve({.no_python = true, .program = directory_ + "/train.py"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->argv, Argv{directory_ + "/train.py"});
}

TEST_F(ResolveCommand, ModuleRunsByPython) {
  absl::StatusOr<Command> command =
      resolve({.module = true, .program = "package.main", .program_args = {"a"}});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->argv, (Argv{"python3", "-u", "-m", "package.main", "a"}));
}

TEST_F(ResolveCommand, RunPathTakesScriptsAndDirectories) {
  for (const std::string& program : {directory_ + "/train.py", directory_}) {
    absl::StatusOr<Command> command = resolve({.run_path = true, .program = program, .program_args = {"a"}});
    ASSERT_TRUE(command.ok()) << command.status();
    ASSERT_EQ(command->argv.size(), 6u);
    EXPECT_EQ(command->argv[2], "-c");
    EXPECT_EQ(command->argv[4], program);
    EXPECT_EQ(command->argv[5], "a");
  }
  EXPECT_EQ(resolve({.run_path = true, .program = "absent"}).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ResolveCommand, LocalRankIsTheFirstArgumentWithoutUseEnv) {
  const std::string train = directory_ + "/train";
  absl::StatusOr<Command> command = resolve({.use_env = false, .program = train, .program_args = {"a"}});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->for_local_rank(2).argv, (Argv{train, "--local_rank=2", "a"}));
  command = resolve({.use_env = false, .program = train + ".py"});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->for_local_rank(0).argv, (Argv{"python3", "-u", train + ".py", "--local_rank=0"}));
  command = resolve({.program = train});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->for_local_rank(2).argv, Argv{train});
}

TEST_F(ResolveCommand, ProgramThatCannotRunIsNamed) {
  struct Row {
    std::string program;
    absl::StatusCode code;
  };
  for (const Row& row : {Row{directory_ + "/absent", absl::StatusCode::kNotFound},
                         Row{"absent-anywhere", absl::StatusCode::kNotFound},
                         Row{directory_ + "/absent.py", absl::StatusCode::kNotFound},
                         Row{directory_ + "/data", absl::StatusCode::kPermissionDenied},
                         Row{directory_ + "/", absl::StatusCode::kPermissionDenied}}) {
    absl::StatusOr<Command> command = resolve({.program = row.program});
    EXPECT_EQ(command.status().code(), row.code) << row.program;
    EXPECT_NE(command.status().message().find(row.program), absl::string_view::npos) << command.status();
  }
}

}  // namespace
}  // namespace gradwire::tools
