// Another user of the host tries to read the secrets of a job of the launcher, and to use its store.
#include "gradwire/base/testing/other_user.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/io/descriptor.h"
#include "gradwire/base/testing/test_needs.h"
#include "gradwire/store/testing/pytorch_ping.h"
#include "gradwire/tests/launch/launch_process.h"
#include "gradwire/tests/launch/security/protection.h"
#include "gradwire/tools/running_jobs/job_folder.h"

namespace gradwire::tests {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// "read PATH": returns the content of the file, or "cannot open: " with the reason. "pytorch PORT": uses the
// store at the port as a client of PyTorch's TCPStore. "jobs FOLDER": how many jobs inspect would find there,
// and what is wrong. "take FOLDER": makes the folder, with a file in it, and returns "taken".
std::string act(const std::string& input) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(input, absl::MaxSplits(' ', 1));
  if (parts.first == "pytorch") return store::ping_as_pytorch("127.0.0.1", std::stoi(parts.second));
  if (parts.first == "jobs") {
    const tools::RunningJobs found = tools::find_running_jobs({.paths = {parts.second}});
    return absl::StrCat(found.jobs.size(), " ", absl::StrJoin(found.problems, "; "));
  }
  if (parts.first == "take") {
    if (::mkdir(parts.second.c_str(), 0777) != 0) return std::strerror(errno);
    return ::chmod(parts.second.c_str(), 0777) == 0 ? "taken" : std::strerror(errno);
  }
  const Descriptor file(::open(parts.second.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return absl::StrCat("cannot open: ", std::strerror(errno));
  char bytes[4096];
  const ssize_t size = ::read(file.get(), bytes, sizeof(bytes));
  return size < 0 ? absl::StrCat("cannot read: ", std::strerror(errno))
                  : std::string(bytes, static_cast<size_t>(size));
}

// The process of another user is made before the test starts anything else.
class OtherUserOfAJob : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEEDS("root", OtherUser::available());
    other_ = std::make_unique<OtherUser>(&act);
  }

  std::string read(const std::string& path) { return other_->ask("read " + path); }
  // Expects that the other user cannot read a file, which this user can.
  void expect_closed(const std::string& path) {
    EXPECT_EQ(::access(path.c_str(), R_OK), 0) << path;
    EXPECT_EQ(read(path), "cannot open: Permission denied") << path;
  }

  std::unique_ptr<OtherUser> other_;
};

TEST_F(OtherUserOfAJob, CannotReadTheTokenOfARunningJob) {
  LaunchProcess launch(with_script({"--standalone"}, "echo $$ $GRADWIRE_TOKEN_FD >&9; exec sleep 1000"));
  const std::vector<std::string> shown = absl::StrSplit(launch.events(1).at(0), ' ');
  ASSERT_EQ(shown.size(), 2u);
  expect_closed(absl::StrCat("/proc/", shown[0], "/fd/", shown[1]));
  expect_closed(absl::StrCat("/proc/", shown[0], "/environ"));
  // The launcher itself.
  expect_closed(absl::StrCat("/proc/", launch.pid(), "/environ"));
  expect_closed(absl::StrCat("/proc/", launch.pid(), "/mem"));
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
}

// The folder is one that the other user can enter.
TEST_F(OtherUserOfAJob, CannotReadTheTokenFile) {
  std::string folder = "/tmp/gradwire_other_user_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  const std::string file = folder + "/token";
  EXPECT_EQ(LaunchProcess({"--make_token", file}).wait(), 0);
  expect_closed(file);
  EXPECT_EQ(::unlink(file.c_str()), 0);
  EXPECT_EQ(::rmdir(folder.c_str()), 0);
}

TEST_F(OtherUserOfAJob, CannotReadTheKeysThatTheLauncherMakes) {
  LaunchProcess launch(
      with_script({"--standalone", "--secure"}, "echo $GRADWIRE_KEY_FILE >&9; exec sleep 1000"),
      {{"TMPDIR", "/tmp"}});
  const std::string key = launch.events(1).at(0);
  expect_closed(key);
  EXPECT_THAT(key, StartsWith("/tmp/"));
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
}

// A folder that every user can enter and change, as /tmp, and the folder of the jobs in it.
class OtherUserAndTheJobFile : public OtherUserOfAJob {
 protected:
  void SetUp() override {
    OtherUserOfAJob::SetUp();
    if (IsSkipped()) return;
    ASSERT_NE(::mkdtemp(parent_.data()), nullptr);
    ASSERT_EQ(::chmod(parent_.c_str(), 01777), 0);
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(parent_, ignored);
  }
  std::string jobs() const { return parent_ + "/gradwire"; }

  std::string parent_ = "/tmp/gradwire_runtime_XXXXXX";
};

TEST_F(OtherUserAndTheJobFile, CannotReadItOrItsTokenAndFindsNoJob) {
  LaunchProcess launch(with_script({"--standalone"}, "echo ready >&9; exec sleep 1000"),
                       {{"GRADWIRE_RUNTIME_DIR", jobs()}});
  launch.events(1);
  const tools::RunningJobs found = tools::find_running_jobs({.paths = {jobs()}});
  ASSERT_EQ(found.jobs.size(), 1u);
  const std::string token = found.jobs[0].security.token_file;
  expect_closed(token);
  expect_closed(std::filesystem::path(token).parent_path() / "job");
  // Nor does its inspect find the job.
  EXPECT_THAT(other_->ask("jobs " + jobs()), StartsWith("0 cannot open the folder"));
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
  EXPECT_EQ(::access(token.c_str(), F_OK), -1);
}

TEST_F(OtherUserAndTheJobFile, WhoTakesTheFolderGetsNothing) {
  ASSERT_EQ(other_->ask("take " + jobs()), "taken");
  LaunchProcess refused({"--standalone", "true"}, {{"GRADWIRE_RUNTIME_DIR", jobs()}});
  EXPECT_NE(refused.wait(), 0);
  EXPECT_THAT(refused.err(), HasSubstr("belongs to user"));
  EXPECT_TRUE(std::filesystem::is_empty(jobs()));
  // Files that this user would write there are not read.
  const tools::RunningJobs found = tools::find_running_jobs({.paths = {jobs()}});
  EXPECT_EQ(found.jobs.size(), 0u);
  EXPECT_EQ(found.problems.size(), 1u);
}

TEST_F(OtherUserOfAJob, UsesTheStoreAsPyTorchOnlyIfTheLauncherAllowsIt) {
  for (const bool allowed : {false, true}) {
    std::vector<std::string> options = {"--standalone"};
    if (allowed) options.push_back("--allow_unauthenticated_pytorch");
    LaunchProcess launch(with_script(options, "echo $MASTER_PORT >&9; exec sleep 1000"));
    const std::string port = launch.events(1).at(0);
    EXPECT_EQ(other_->ask("pytorch " + port), allowed ? "served" : "refused");
    // A client of this user is served in any case. A client of Gradwire needs the token in any case.
    EXPECT_EQ(act("pytorch " + port), "served");
    EXPECT_FALSE(try_store(std::stoi(port), {}).ok());
    launch.send(SIGTERM);
    launch.events_to_the_end();
    launch.wait();
    EXPECT_EQ(absl::StrContains(launch.err(), "--allow_unauthenticated_pytorch"), allowed) << launch.err();
  }
}

}  // namespace
}  // namespace gradwire::tests
