#include "gradwire/tools/running_jobs/running_job.h"

#include <gtest/gtest.h>

#include <string>

namespace gradwire::tools {
namespace {

TEST(RunningJob, TextAndBack) {
  const RunningJob job = {.id = "mnist \"7\"",
                          .program = "./train\n",
                          .launcher = 4711,
                          .began = absl::FromUnixMillis(1'700'000'000'123),
                          .store = "host-a:29500",
                          .security = {.token_file = "/run/t",
                                       .certificate_file = "/c",
                                       .key_file = "/k",
                                       .authority_file = "/a",
                                       .insecure = true},
                          .observer = "inspect"};
  const absl::StatusOr<RunningJob> read = parse_running_job(to_text(job));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->id, job.id);
  EXPECT_EQ(read->program, job.program);
  EXPECT_EQ(read->launcher, job.launcher);
  EXPECT_EQ(read->began, job.began);
  EXPECT_EQ(read->store, job.store);
  EXPECT_EQ(read->security.token_file, "/run/t");
  EXPECT_EQ(read->security.certificate_file, "/c");
  EXPECT_EQ(read->security.key_file, "/k");
  EXPECT_EQ(read->security.authority_file, "/a");
  EXPECT_TRUE(read->security.insecure);
  EXPECT_EQ(read->observer, "inspect");
}

TEST(RunningJob, PathsThatAreNotUtf8AreShownAllTheSame) {
  const absl::StatusOr<RunningJob> read =
      parse_running_job(to_text({.id = "a", .program = "p\xff", .store = "h:1"}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->program, "p\xef\xbf\xbd");
}

TEST(RunningJob, OtherTextsAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{"), std::string("{\"id\":\"a\"}"),
        std::string("{\"id\":7,\"store\":\"h:1\"}"), std::string("{\"id\":\"\",\"store\":\"h:1\"}"),
        std::string(50'000, '['), std::string(kMostJobText + 1, ' ')}) {
    EXPECT_EQ(parse_running_job(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text.substr(0, 40);
  }
}

// Members of another type count as missing.
TEST(RunningJob, MembersOfAnotherTypeAreIgnored) {
  const absl::StatusOr<RunningJob> read = parse_running_job(
      R"({"id":"a","store":"h:1","launcher":"x","began_ms":{},"insecure":1,"token_file":[],"more":null})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->launcher, 0);
  EXPECT_FALSE(read->security.insecure);
  EXPECT_EQ(read->security.token_file, "");
}

}  // namespace
}  // namespace gradwire::tools
