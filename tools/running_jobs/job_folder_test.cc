#include "gradwire/tools/running_jobs/job_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/security/token/token_file.h"

namespace gradwire::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RuntimeFolders folders_of(const std::map<std::string, std::string>& variables) {
  return RuntimeFolders::of([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777;
}

class JobFolderTest : public ::testing::Test {
 protected:
  JobFolderTest() {
    EXPECT_NE(mkdtemp(parent_.data()), nullptr);
    folders_ = {.paths = {parent_ + "/gradwire"}};
  }
  ~JobFolderTest() override { std::filesystem::remove_all(parent_); }

  JobFolder create() const {
    absl::StatusOr<JobFolder> folder = JobFolder::create(folders_);
    EXPECT_TRUE(folder.ok()) << folder.status();
    return *std::move(folder);
  }
  static RunningJob job(const std::string& id, int64_t began = 1) {
    return {.id = id, .began = absl::FromUnixSeconds(began), .store = "h:1"};
  }
  std::vector<std::string> found() const {
    std::vector<std::string> ids;
    for (const RunningJob& job : find_running_jobs(folders_).jobs) ids.push_back(job.id);
    return ids;
  }
  // The folder of a job whose launcher was killed.
  void leave_behind(const std::string& id) const {
    const pid_t child = fork();
    if (child == 0) {
      absl::StatusOr<JobFolder> folder = JobFolder::create(folders_);
      _exit(folder.ok() && folder->write(job(id)).ok() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  std::size_t entries() const {
    const auto all = std::filesystem::directory_iterator(folders_.paths.front());
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }

  std::string parent_ = ::testing::TempDir() + "/jobs_XXXXXX";
  RuntimeFolders folders_;
};

TEST(RuntimeFolders, ComeFromTheEnvironment) {
  const std::string user = absl::StrCat(geteuid());
  EXPECT_THAT(folders_of({}).paths, ElementsAre("/run/user/" + user + "/gradwire", "/tmp/gradwire-" + user));
  EXPECT_THAT(folders_of({{"XDG_RUNTIME_DIR", "/x"}}).paths,
              ElementsAre("/x/gradwire", "/tmp/gradwire-" + user));
  EXPECT_THAT(folders_of({{"XDG_RUNTIME_DIR", "x"}}).paths.front(), "/run/user/" + user + "/gradwire");
  const RuntimeFolders chosen = folders_of({{"GRADWIRE_RUNTIME_DIR", "/g"}, {"XDG_RUNTIME_DIR", "/x"}});
  EXPECT_THAT(chosen.paths, ElementsAre("/g"));
  EXPECT_TRUE(chosen.chosen);
  EXPECT_THAT(folders_of({{"GRADWIRE_RUNTIME_DIR", "none"}}).paths, IsEmpty());
}

TEST_F(JobFolderTest, JobIsFoundFromItsFirstFileToItsEnd) {
  {
    JobFolder folder = create();
    EXPECT_THAT(found(), IsEmpty());
    ASSERT_TRUE(folder.write(job("one")).ok());
    EXPECT_THAT(found(), ElementsAre("one"));
    ASSERT_TRUE(folder.write(job("two")).ok());
    EXPECT_THAT(found(), ElementsAre("two"));
  }
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_EQ(entries(), 0u);
}

TEST_F(JobFolderTest, AMovedOneIsRemovedOnce) {
  JobFolder folder = create();
  ASSERT_TRUE(folder.write(job("a")).ok());
  { JobFolder moved = std::move(folder); }
  EXPECT_EQ(entries(), 0u);
}

TEST_F(JobFolderTest, SeveralJobsAreInTheOrderOfTheirBeginning) {
  JobFolder a = create(), b = create(), c = create();
  ASSERT_TRUE(a.write(job("last", 30)).ok());
  ASSERT_TRUE(b.write(job("first", 10)).ok());
  ASSERT_TRUE(c.write(job("middle", 20)).ok());
  EXPECT_THAT(found(), ElementsAre("first", "middle", "last"));
}

TEST_F(JobFolderTest, OnlyThisUserHasRights) {
  JobFolder folder = create();
  ASSERT_TRUE(folder.write(job("a")).ok());
  const absl::StatusOr<std::string> token = folder.add_token(security::make_token());
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(mode_of(folders_.paths.front()), 0700u);
  EXPECT_EQ(mode_of(folder.path()), 0700u);
  EXPECT_EQ(mode_of(folder.path() + "/job"), 0600u);
  EXPECT_EQ(mode_of(*token), 0600u);
  EXPECT_EQ(security::read_token_file(*token)->size(), 64u);
  EXPECT_TRUE(absl::IsAlreadyExists(folder.add_token(security::make_token()).status()));
}

TEST_F(JobFolderTest, JobOfAKilledLauncherIsNotFoundAndTheNextOneRemovesIt) {
  leave_behind("killed");
  EXPECT_EQ(entries(), 1u);
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_EQ(entries(), 1u);  // A reader removes nothing.
  JobFolder folder = create();
  EXPECT_EQ(entries(), 1u);
  ASSERT_TRUE(folder.write(job("alive")).ok());
  EXPECT_THAT(found(), ElementsAre("alive"));
}

TEST_F(JobFolderTest, FolderThatIsBeingMadeIsNotRemoved) {
  { JobFolder makes_the_parent = create(); }
  const std::string path = folders_.paths.front() + "/job.abcdef";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  JobFolder folder = create();
  EXPECT_EQ(entries(), 2u);
  // One that is old belongs to a launcher that was killed before it wrote its file.
  const timespec old[] = {absl::ToTimespec(absl::Now() - absl::Hours(1)),
                          absl::ToTimespec(absl::Now() - absl::Hours(1))};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
  JobFolder next = create();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(JobFolderTest, FoldersOfTheUserThatOnlyLookAlikeAreKept) {
  { JobFolder makes_the_parent = create(); }
  const timespec old[] = {absl::ToTimespec(absl::Now() - absl::Hours(1)),
                          absl::ToTimespec(absl::Now() - absl::Hours(1))};
  for (const char* name : {"/job.12345", "/job.results", "/job.abcdef"}) {
    const std::string path = folders_.paths.front() + name;
    ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
    std::ofstream(path + "/job") << "{}";
    std::ofstream(path + "/data") << "1";
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), old, 0), 0);
  }
  JobFolder next = create();
  for (const char* name : {"/job.12345", "/job.results", "/job.abcdef"})
    EXPECT_TRUE(std::filesystem::exists(folders_.paths.front() + name + "/data"));
}

TEST_F(JobFolderTest, FolderInWhichOthersHaveRightsIsNotUsed) {
  const std::string& path = folders_.paths.front();
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(path.c_str(), 0750), 0);
  const absl::Status status = JobFolder::create(folders_).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 700 " + path));
  EXPECT_EQ(find_running_jobs(folders_).problems.size(), 1u);
  // The next folder is used instead.
  folders_.paths.push_back(parent_ + "/second");
  EXPECT_THAT(create().path(), HasSubstr("/second/job."));
}

TEST_F(JobFolderTest, LinkIsNotFollowed) {
  const std::string elsewhere = parent_ + "/elsewhere";
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), folders_.paths.front().c_str()), 0);
  EXPECT_FALSE(JobFolder::create(folders_).ok());
  EXPECT_FALSE(JobFolder::create({.paths = {folders_.paths.front() + "/"}}).ok());
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
}

TEST_F(JobFolderTest, FolderThatOthersCanExchangeIsNotUsed) {
  const std::string shared = parent_ + "/shared";
  ASSERT_EQ(mkdir(shared.c_str(), 0700), 0);
  ASSERT_EQ(chmod(shared.c_str(), 0777), 0);
  const RuntimeFolders folders{.paths = {shared + "/gradwire"}};
  const absl::Status status = JobFolder::create(folders).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(shared));
  // As in /tmp, where only the owner of a folder can rename it.
  ASSERT_EQ(chmod(shared.c_str(), 01777), 0);
  EXPECT_TRUE(JobFolder::create(folders).ok());
}

TEST_F(JobFolderTest, FileThatOthersCanReadOrThatIsMalformedIsAProblem) {
  JobFolder open = create(), malformed = create();
  ASSERT_TRUE(open.write(job("open")).ok());
  ASSERT_TRUE(malformed.write(job("malformed")).ok());
  ASSERT_EQ(chmod((open.path() + "/job").c_str(), 0644), 0);
  std::ofstream(malformed.path() + "/job") << "{";
  const RunningJobs all = find_running_jobs(folders_);
  EXPECT_THAT(all.jobs, IsEmpty());
  ASSERT_EQ(all.problems.size(), 2u);
  EXPECT_THAT(absl::StrCat(all.problems[0], all.problems[1]), HasSubstr("chmod 600 " + open.path()));
  EXPECT_THAT(absl::StrCat(all.problems[0], all.problems[1]), HasSubstr(malformed.path()));
}

TEST_F(JobFolderTest, ParentThatIsMissingIsNamed) {
  const absl::Status status = JobFolder::create({.paths = {parent_ + "/no/folder"}}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(parent_ + "/no/folder"));
  EXPECT_THAT(find_running_jobs({.paths = {parent_ + "/no/folder"}}).problems, IsEmpty());
}

}  // namespace
}  // namespace gradwire::tools
