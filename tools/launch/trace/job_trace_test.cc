#include "gradwire/tools/launch/trace/job_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

std::string content(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class JobTraceTest : public ::testing::Test {
 protected:
  JobTraceTest() { std::filesystem::remove_all(directory_); }

  // Writes the record of a worker, which has recorded `recorded` calls and keeps one.
  static void write(const std::string& folder, const std::string& name, int recorded) {
    std::ofstream(absl::StrCat(folder, "/", name, ".jsonl"))
        << R"({"type":"flight","version":1,"source":"agent","reason":"why","process":12,"boot":"b",)"
        << R"("wall_ns":2000000,"clock_ns":1000000,"worker":")" << name << R"(","incarnation":"0xa)"
        << name.size() << R"(","dump":"ordinary","capacity":1,"recorded":)" << recorded << "}\n"
        << R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"f","began":100,)"
        << R"("ended":400,"code":"OK"})"
        << "\n"
        << R"({"type":"end","lines":1})"
        << "\n";
  }
  std::string add(JobTrace& trace, int round, int rank, int node = 0, int nodes = 1) {
    JobTrace::Variables variables;
    const absl::Status added =
        trace.add_worker(round, {.rank = rank, .group_rank = node, .group_world_size = nodes}, variables);
    EXPECT_TRUE(added.ok()) << added;
    return variables.empty() ? "" : variables[0].second;
  }

  const std::string directory_ = absl::StrCat(::testing::TempDir(), "job_trace-", getpid());
};

TEST_F(JobTraceTest, WithoutADirectoryNothingHappens) {
  JobTrace trace({});
  EXPECT_TRUE(trace.prepare().ok());
  EXPECT_EQ(add(trace, 0, 0), "");
  EXPECT_THAT(trace.write(), IsEmpty());
}

TEST_F(JobTraceTest, WorkersHaveFoldersAndOneTrace) {
  JobTrace trace({.directory = directory_, .records = 99});
  ASSERT_TRUE(trace.prepare().ok());
  JobTrace::Variables variables;
  ASSERT_TRUE(trace.add_worker(1, {.rank = 3, .group_world_size = 1}, variables).ok());
  EXPECT_THAT(variables, ElementsAre(Pair("GRADWIRE_TRACE_DIR", directory_ + "/round_1/rank_3"),
                                     Pair("GRADWIRE_TRACE_RECORDS", "99")));
  EXPECT_EQ(std::filesystem::status(directory_).permissions(), std::filesystem::perms::owner_all);
  write(variables[0].second, "a", 1);
  write(add(trace, 1, 4), "bb", 8);
  const std::string lines = absl::StrJoin(trace.write(), "\n");
  EXPECT_THAT(lines,
              AllOf(HasSubstr(absl::StrCat("wrote ", directory_, "/trace.json: 2 spans of 2 workers")),
                    HasSubstr("error of at most 0.0 us"), Not(HasSubstr("not mapped")),
                    HasSubstr("7 earlier records of \"bb\" are missing"), HasSubstr("--trace_records")));
  EXPECT_THAT(content(directory_ + "/trace.json"),
              AllOf(HasSubstr("\"overwritten_records\":{\"bb\":7}"),
                    HasSubstr("\"labels\":\"7 earlier records were overwritten\"")));
}

TEST_F(JobTraceTest, NodeOfSeveralHasItsNumberInTheName) {
  JobTrace trace({.directory = directory_});
  ASSERT_TRUE(trace.prepare().ok());
  write(add(trace, 0, 0, /*node=*/2, /*nodes=*/3), "a", 1);
  EXPECT_THAT(absl::StrJoin(trace.write(), "\n"), HasSubstr("/trace-node2.json: 1 spans"));
}

TEST_F(JobTraceTest, WorkerWithoutRecordsIsNamed) {
  JobTrace trace({.directory = directory_});
  ASSERT_TRUE(trace.prepare().ok());
  write(add(trace, 0, 0), "a", 1);
  add(trace, 0, 5);
  EXPECT_THAT(absl::StrJoin(trace.write(), "\n"),
              AllOf(HasSubstr("1 spans of 1 worker"), HasSubstr("rank 5 of round 0 is missing")));
}

TEST_F(JobTraceTest, RecordsOfAnEarlierJobAreRemovedAndOtherFilesStay) {
  JobTrace before({.directory = directory_});
  ASSERT_TRUE(before.prepare().ok());
  const std::string folder = add(before, 0, 0);
  write(folder, "old", 1);
  std::ofstream(folder + "/notes.txt") << "mine";
  JobTrace trace({.directory = directory_});
  ASSERT_TRUE(trace.prepare().ok());
  write(add(trace, 0, 0), "new", 1);
  (void)trace.write();
  EXPECT_THAT(content(directory_ + "/trace.json"), AllOf(HasSubstr("new"), Not(HasSubstr("old"))));
  EXPECT_EQ(content(folder + "/notes.txt"), "mine");
}

TEST_F(JobTraceTest, FolderToWhichAllUsersWriteIsRefused) {
  ASSERT_TRUE(std::filesystem::create_directories(directory_));
  std::filesystem::permissions(directory_, std::filesystem::perms::all);
  JobTrace trace({.directory = directory_});
  const absl::Status status = trace.prepare();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory_));
}

// A link in its place is removed, and not what it leads to.
TEST_F(JobTraceTest, TraceIsNotWrittenThroughALink) {
  JobTrace trace({.directory = directory_});
  ASSERT_TRUE(trace.prepare().ok());
  const std::string target = absl::StrCat(::testing::TempDir(), "/target");
  std::ofstream(target) << "precious";
  std::filesystem::create_symlink(target, directory_ + "/trace.json");
  write(add(trace, 0, 0), "a", 1);
  trace.write();
  EXPECT_EQ(content(target), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(directory_ + "/trace.json"));
  EXPECT_THAT(content(directory_ + "/trace.json"), HasSubstr("traceEvents"));
}

TEST_F(JobTraceTest, DirectoryThatCannotBeMadeIsAnError) {
  std::ofstream(directory_) << "a file";
  JobTrace trace({.directory = directory_ + "/below"});
  EXPECT_THAT(std::string(trace.prepare().message()), AllOf(HasSubstr("below"), HasSubstr("--trace")));
  std::filesystem::remove(directory_);
}

}  // namespace
}  // namespace gradwire::tools
