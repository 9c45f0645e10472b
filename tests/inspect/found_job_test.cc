// inspect finds the jobs of the user's launchers without an option: each is started in one terminal, and
// inspected in another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/tests/inspect/run_inspect.h"
#include "gradwire/tests/launch/launch_process.h"

namespace gradwire::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A job of two workers without a problem.
class FoundJob {
 public:
  explicit FoundJob(std::vector<std::string> options = {"--standalone"}) : launch_(with_workers(options)) {
    launch_.events(1);
  }
  ~FoundJob() { end(SIGTERM); }

  void end(int signal) {
    if (ended_) return;
    ended_ = true;
    launch_.send(signal);
    launch_.events_to_the_end();
    launch_.wait();
  }
  pid_t launcher() const { return launch_.pid(); }

 private:
  static std::vector<std::string> with_workers(std::vector<std::string> options) {
    for (const char* each : {"--nproc_per_node=2", "tests/inspect/problem_worker", "none"})
      options.emplace_back(each);
    return options;
  }

  LaunchProcess launch_;
  bool ended_ = false;
};

std::vector<std::string> once(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--once", "--json", "--interval=0.1", "--timeout=20"});
  return more;
}

// How many workers have answered, by the output of --once --json.
int answers(const std::string& text) {
  int count = 0;
  const google::protobuf::Struct json = parse_json(text);
  const auto workers = json.fields().find("workers");
  if (workers == json.fields().end()) return 0;
  for (const auto& worker : workers->second.list_value().values()) {
    if (worker.struct_value().fields().at("answered").bool_value()) ++count;
  }
  return count;
}

std::vector<std::string> folders_of_jobs() {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(runtime_folder(), ignored))
    paths.push_back(entry.path());
  return paths;
}

TEST(InspectFoundJob, IsTheOnlyOneOfTheUserWhateverItsCredentials) {
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--standalone"}, {"--standalone", "--secure"}, {"--standalone", "--insecure"}}) {
    const FoundJob job(options);
    const InspectResult result = run_inspect(once());
    EXPECT_EQ(result.code, 0) << absl::StrJoin(options, " ") << ": " << result.out;
    EXPECT_EQ(answers(result.out), 2) << result.out;
  }
  EXPECT_THAT(folders_of_jobs(), IsEmpty());
}

TEST(InspectFoundJob, HasATokenFileThatTheLauncherWasGiven) {
  const std::string file = absl::StrCat(::testing::TempDir(), "/given_token");
  EXPECT_EQ(LaunchProcess({"--make_token", file}).wait(), 0);
  const FoundJob job({"--standalone", absl::StrCat("--token_file=", file)});
  EXPECT_EQ(answers(run_inspect(once()).out), 2);
  // The token is not written a second time.
  for (const std::string& folder : folders_of_jobs())
    EXPECT_FALSE(std::filesystem::exists(folder + "/token"));
}

TEST(InspectFoundJob, OneOfSeveralIsNamedByItsIdOrItsLauncher) {
  const FoundJob one({"--standalone", "--rdzv_id=first"}), other({"--standalone", "--rdzv_id=second"});
  const InspectResult list = run_inspect({"--list"});
  EXPECT_EQ(list.code, 0);
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("first"), HasSubstr("second"), HasSubstr(absl::StrCat(one.launcher())),
                    HasSubstr("tests/inspect/problem_worker")));
  const InspectResult unnamed = run_inspect(once());
  EXPECT_EQ(unnamed.code, 2);
  EXPECT_THAT(unnamed.out, AllOf(HasSubstr("2 jobs fit"), HasSubstr("--job=ID")));
  for (const std::string& name : {std::string("second"), absl::StrCat(other.launcher())}) {
    const InspectResult named = run_inspect(once({"--job=" + name}));
    EXPECT_EQ(named.code, 0) << named.out;
    EXPECT_EQ(answers(named.out), 2);
  }
}

// Its reaper removes the folder. tools/running_jobs has the test of a folder that nobody could remove.
TEST(InspectFoundJob, IsGoneAfterTheLauncherWasKilled) {
  FoundJob job;
  EXPECT_EQ(folders_of_jobs().size(), 1u);
  job.end(SIGKILL);
  EXPECT_THAT(folders_of_jobs(), IsEmpty());
  const InspectResult result = run_inspect({"--list"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("no launcher of this user"), Not(HasSubstr("problem_worker"))));
}

TEST(InspectFoundJob, IsNotDescribedIfTheUserWantsThat) {
  LaunchProcess launch(with_script({"--standalone"}, "echo ready >&9; exec sleep 1000"),
                       {{"GRADWIRE_RUNTIME_DIR", "none"}});
  launch.events(1);
  EXPECT_THAT(folders_of_jobs(), IsEmpty());
  launch.send(SIGTERM);
  launch.events_to_the_end();
  launch.wait();
  EXPECT_THAT(launch.err(), Not(HasSubstr("inspect will not find")));
}

TEST(InspectFoundJob, FolderOfTheUserThatCannotBeUsedIsAnErrorOfTheLauncher) {
  LaunchProcess launch({"--standalone", "true"}, {{"GRADWIRE_RUNTIME_DIR", "/does/not/exist"}});
  EXPECT_NE(launch.wait(), 0);
  EXPECT_THAT(launch.err(), AllOf(HasSubstr("GRADWIRE_RUNTIME_DIR"), HasSubstr("/does/not/exist")));
}

class InspectFoundJobOfEtcd : public ::testing::Test {
 protected:
  void SetUp() override {
    GRADWIRE_NEED_ETCD();
    etcd_.emplace();
  }

  std::optional<store::EtcdProcess> etcd_;
};

// The store of its workers has another address in each round.
TEST_F(InspectFoundJobOfEtcd, IsFoundByTheStoreOfItsRound) {
  const FoundJob job({"--nnodes=1", "--rdzv_backend=etcd",
                      absl::StrCat("--rdzv_endpoint=127.0.0.1:", etcd_->port()), "--rdzv_id=of_etcd"});
  const InspectResult result = run_inspect(once());
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(answers(result.out), 2);
}

}  // namespace
}  // namespace gradwire::tests
