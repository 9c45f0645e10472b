#include "gradwire/tools/inspect/live/trace_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::inspect {
namespace {

using ::testing::HasSubstr;

TEST(TraceCommand, WritesOneTraceOfADirectory) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/trace-", ::getpid());
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  const auto write = [&](const std::string& name, const std::string& incarnation, const std::string& call) {
    std::ofstream(absl::StrCat(directory, "/", name, ".jsonl"))
        << R"({"type":"flight","version":1,"source":"agent","reason":"why","process":12,"wall_ns":2000000,)"
        << R"("clock_ns":1000000,"worker":")" << name << R"(","id":0,"incarnation":")" << incarnation
        << R"(","dump":"ordinary","capacity":4,"recorded":1})"
        << "\n"
        << call << "\n"
        << R"({"type":"end","lines":1})"
        << "\n";
  };
  write(
      "a", "0xa",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"f","began":100,"started":150,)"
      R"("ended":400000,"code":"OK"})");
  write("b", "0xb",
        R"({"type":"call","side":"served","caller":"0xa","peer":"0xa","number":7,"name":"f","began":5000,)"
        R"("started":6000,"ended":300000,"code":"OK"})");
  const std::string trace = directory + "/trace.json";
  std::string out, errors;
  EXPECT_EQ(trace_command({absl::StrCat("--out=", trace), directory}, out, errors), 0) << errors;
  EXPECT_THAT(out, HasSubstr("2 spans of 2 workers"));
  EXPECT_THAT(out, HasSubstr("the clock of \"b\" is mapped with an error of at most"));
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"name\":\"answer\""));
}

TEST(TraceCommand, EventsOfAProfilerAreOnTheClockOfTheirWorker) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/profiled-", ::getpid());
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  std::ofstream(directory + "/a.jsonl")
      << R"({"type":"flight","version":1,"source":"agent","process":12,"wall_ns":1700000000000009000,)"
      << R"("clock_ns":9000,"worker":"a","incarnation":"0xa","capacity":4,"recorded":1})"
      << "\n"
      << R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"f","began":1000,)"
      << R"("ended":9000,"code":"OK"})"
      << "\n"
      << R"({"type":"end","lines":1})"
      << "\n";
  std::ofstream(directory + "/profile.json")
      << R"({"baseTimeNanoseconds":1700000000000000000,"traceEvents":[)"
      << R"({"ph":"X","cat":"cpu_op","name":"aten::mul","pid":12,"tid":12,"ts":2.000,"dur":1.500}]})";
  const std::string trace = directory + "/trace.json";
  std::string out, errors;
  EXPECT_EQ(
      trace_command({"-o", trace, "--profiler=a=" + directory + "/profile.json", directory}, out, errors), 0)
      << errors;
  std::stringstream text;
  text << std::ifstream(trace).rdbuf();
  // The call begins the trace, 1 us before the operator.
  EXPECT_THAT(text.str(),
              HasSubstr("\"ts\":1.000,\"dur\":1.500,\"cat\":\"operator\",\"name\":\"aten::mul\""));
  EXPECT_EQ(
      trace_command({"-o", trace, "--profiler=b=" + directory + "/profile.json", directory}, out, errors), 1);
  EXPECT_THAT(errors, HasSubstr("no worker of the trace has the name \"b\""));
  EXPECT_EQ(trace_command({"-o", trace, "--profiler=" + directory + "/none.json", directory}, out, errors),
            1);
  EXPECT_THAT(errors, HasSubstr("none.json"));
}

TEST(TraceCommand, WrongCommandLinesAndMissingFilesAreNamed) {
  std::string out, errors;
  EXPECT_EQ(trace_command({}, out, errors), 2);
  EXPECT_EQ(trace_command({"--what"}, out, errors), 2);
  EXPECT_THAT(errors, HasSubstr("--what"));
  EXPECT_EQ(trace_command({"--seconds=1", "/tmp"}, out, errors), 2);
  EXPECT_THAT(errors, HasSubstr("either"));
  EXPECT_EQ(trace_command({"/none/at/all.jsonl"}, out, errors), 1);
  EXPECT_THAT(errors, HasSubstr("/none/at/all.jsonl"));
  EXPECT_EQ(out, "");
}

}  // namespace
}  // namespace gradwire::inspect
