#include "gradwire/tools/inspect/jobs/choose_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "gradwire/tools/running_jobs/running_job.h"

namespace gradwire::inspect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

tools::RunningJob job(const std::string& id, int64_t launcher, const std::string& store) {
  return {.id = id,
          .program = "./train",
          .launcher = launcher,
          .began = absl::FromUnixSeconds(100),
          .store = store,
          .security = {.token_file = "/run/token_of_" + id},
          .observer = "inspect"};
}

TEST(ChooseJob, TheOnlyJobIsTakenWithItsCredentials) {
  JobPlace place;
  ASSERT_TRUE(choose_job({.jobs = {job("a", 1, "h:1")}}, false, place).ok());
  EXPECT_EQ(place.store, "h:1");
  EXPECT_EQ(place.security.token_file, "/run/token_of_a");
  EXPECT_EQ(place.name, "inspect");
}

TEST(ChooseJob, TheNameIsThatOfTheCertificateUnlessTheUserGivesOne) {
  tools::RunningJob one = job("a", 1, "h:1");
  one.security = {.certificate_file = "/c", .key_file = "/k", .authority_file = "/a"};
  one.observer = "launcher";
  JobPlace place;
  ASSERT_TRUE(choose_job({.jobs = {one}}, false, place).ok());
  EXPECT_EQ(place.name, "launcher");
  EXPECT_EQ(place.security.key_file, "/k");
  JobPlace named;
  named.name = "mine";
  ASSERT_TRUE(choose_job({.jobs = {one}}, false, named).ok());
  EXPECT_EQ(named.name, "mine");
}

TEST(ChooseJob, CredentialsOfTheCommandLineAreKept) {
  for (const SecurityOptions& given :
       {SecurityOptions{.token_file = "mine"}, SecurityOptions{.insecure = true},
        SecurityOptions{.certificate_file = "c"}}) {
    JobPlace place;
    place.security = given;
    ASSERT_TRUE(choose_job({.jobs = {job("a", 1, "h:1")}}, false, place).ok());
    EXPECT_EQ(place.store, "h:1");
    EXPECT_EQ(place.security.token_file, given.token_file);
    EXPECT_EQ(place.security.insecure, given.insecure);
  }
}

TEST(ChooseJob, StoreOfTheCommandLineOrTheEnvironmentWins) {
  const tools::RunningJobs jobs{.jobs = {job("a", 1, "h:1")}};
  JobPlace place;
  place.store = "other:2";
  ASSERT_TRUE(choose_job(jobs, false, place).ok());
  EXPECT_EQ(place.store, "other:2");
  EXPECT_EQ(place.security.token_file, "");
  JobPlace of_environment;
  ASSERT_TRUE(choose_job(jobs, true, of_environment).ok());
  EXPECT_EQ(of_environment.store, "env://");
  of_environment.job = "a";
  ASSERT_TRUE(choose_job(jobs, true, of_environment).ok());
  EXPECT_EQ(of_environment.store, "h:1");
}

TEST(ChooseJob, OneOfSeveralIsNamed) {
  const tools::RunningJobs jobs{.jobs = {job("a", 11, "h:1"), job("b", 22, "h:2")}};
  JobPlace none;
  const absl::Status status = choose_job(jobs, false, none);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("2 jobs fit"), HasSubstr("--job=ID"), HasSubstr("\"a\" (launcher 11, ./train)"),
                    HasSubstr("\"b\" (launcher 22, ./train)")));
  for (const char* name : {"b", "22"}) {
    JobPlace place;
    place.job = name;
    ASSERT_TRUE(choose_job(jobs, false, place).ok());
    EXPECT_EQ(place.store, "h:2");
  }
  JobPlace unknown;
  unknown.job = "c";
  EXPECT_THAT(std::string(choose_job(jobs, false, unknown).message()),
              AllOf(HasSubstr("the job \"c\""), HasSubstr("--list"), HasSubstr("--store=HOST:PORT")));
}

TEST(ChooseJob, SeveralLaunchersOfOneJobAreOne) {
  JobPlace place;
  ASSERT_TRUE(choose_job({.jobs = {job("a", 1, "h:1"), job("a", 2, "h:1")}}, false, place).ok());
  EXPECT_EQ(place.store, "h:1");
  // The same id at another store is another job.
  JobPlace two;
  EXPECT_FALSE(choose_job({.jobs = {job("a", 1, "h:1"), job("a", 2, "h:2")}}, false, two).ok());
}

TEST(ChooseJob, WithoutAJobTheErrorSaysWhatToDoAndWhatIsWrong) {
  JobPlace place;
  const absl::Status status = choose_job({.problems = {"the folder /x is bad\x1b[2J"}}, false, place);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("no launcher"), HasSubstr("--store=HOST:PORT"),
                                                   HasSubstr("/x is bad"), Not(HasSubstr("\x1b"))));
}

TEST(ListJobs, ShowsEachJobAndNothingThatATerminalObeys) {
  const std::string text =
      list_text({.jobs = {job("a\x1b", 11, "h:1"), job("b", 22, "h:2")}, .problems = {"problem\n"}},
                absl::FromUnixSeconds(112));
  EXPECT_THAT(text, AllOf(HasSubstr("job"), HasSubstr("11  12"), HasSubstr("h:2"), HasSubstr("./train"),
                          HasSubstr("problem"), Not(HasSubstr("\x1b"))));
  EXPECT_EQ(list_text({}, absl::Now()), "no launcher of this user runs a job on this host\n");
}

}  // namespace
}  // namespace gradwire::inspect
