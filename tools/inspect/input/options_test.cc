#include "gradwire/tools/inspect/input/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace gradwire::inspect {
namespace {

using ::testing::HasSubstr;

TEST(Options, DefaultsAreThoseOfTheUsage) {
  const absl::StatusOr<Options> options = parse_options({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_FALSE(options->once || options->list);
  EXPECT_EQ(options->place.job, "");
  EXPECT_EQ(options->place.store, "env://");
  EXPECT_EQ(options->interval, absl::Seconds(1));
  EXPECT_EQ(options->place.timeout, absl::Seconds(3));
  EXPECT_EQ(options->place.name, "inspect");
  EXPECT_EQ(options->thresholds.slow_call, absl::Seconds(5));
  for (const char* part : {"(5)", "(2)", "(1000)", "(60)", "(64)", "(3)", "(8)", "(0.2)", "(10)"})
    EXPECT_THAT(usage(), HasSubstr(part));
}

TEST(Options, AllSpellings) {
  const absl::StatusOr<Options> options =
      parse_options({"--once", "--json", "--store", "host:1", "--slow-call=0.5", "--leak_age=7", "--leak=3",
                     "--token_file=t", "--insecure", "--most=10", "--interval=0.25", "--hot_queue=5",
                     "--hot_wait=2", "--slow_store=0.5", "--no_room=3", "--wrong_clock=4"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->once && options->json && options->place.security.insecure);
  EXPECT_EQ(options->place.store, "host:1");
  EXPECT_EQ(options->thresholds.slow_call, absl::Milliseconds(500));
  EXPECT_EQ(options->thresholds.rref_age, absl::Seconds(7));
  EXPECT_EQ(options->thresholds.rrefs, 3u);
  EXPECT_EQ(options->place.security.token_file, "t");
  EXPECT_EQ(options->place.most, 10u);
  EXPECT_EQ(options->interval, absl::Milliseconds(250));
  EXPECT_EQ(options->thresholds.hot_queue, 5u);
  EXPECT_EQ(options->thresholds.hot_wait, absl::Seconds(2));
  EXPECT_EQ(options->thresholds.slow_store, absl::Milliseconds(500));
  EXPECT_EQ(options->thresholds.no_room, absl::Seconds(3));
  EXPECT_EQ(options->thresholds.wrong_clock, absl::Seconds(4));
}

TEST(Options, ServingThePageHasOptionsOfItsOwn) {
  const absl::StatusOr<Options> options =
      parse_options({"--listen=[::1]:80", "--flight=/tmp/a", "--interval=2"}, Command::kServe);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, "[::1]:80");
  EXPECT_EQ(options->flight, "/tmp/a");
  EXPECT_EQ(parse_options({}, Command::kServe)->listen, "127.0.0.1:0");
  EXPECT_THAT(usage(), HasSubstr("127.0.0.1:0"));
  for (const char* option : {"--once", "--json"}) EXPECT_FALSE(parse_options({option}, Command::kServe).ok());
  for (const char* option : {"--listen=a:1", "--flight=a"}) EXPECT_FALSE(parse_options({option}).ok());
}

TEST(Options, EachMistakeIsNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{"--json"}, "--json needs --once"},
      {{"--nonsense"}, "unknown option --nonsense"},
      {{"job"}, "unexpected argument \"job\""},
      {{"--job=a", "--store=h:1"}, "--job and --store exclude each other"},
      {{"--store"}, "--store needs a value"},
      {{"--store="}, "option --store: it is empty"},
      {{"--once=1"}, "option --once has no value"},
      {{"--interval=0"}, "option --interval: got \"0\""},
      {{"--interval=nan"}, "option --interval"},
      {{"--most=0"}, "option --most: got \"0\", expected a number from 1 to 1024"},
      {{"--leak=-1"}, "option --leak"},
  };
  for (const auto& [arguments, message] : mistakes) {
    const absl::Status status = parse_options(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(TraceOptions, FilesOrARunningJob) {
  const auto files =
      parse_trace_options({"a.jsonl", "-o", "t.json", "dir", "--profiler=b=p.json", "--profiler=q"});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->out, "t.json");
  EXPECT_EQ(files->paths, (std::vector<std::string>{"a.jsonl", "dir"}));
  ASSERT_EQ(files->profiles.size(), 2u);
  EXPECT_EQ(files->profiles[0].worker, "b");
  EXPECT_EQ(files->profiles[0].path, "p.json");
  EXPECT_EQ(files->profiles[1].worker, "");
  const auto job = parse_trace_options({"--seconds=2.5", "--store=host:1", "--token-file=t", "--out=x"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->period, absl::Milliseconds(2500));
  EXPECT_EQ(job->place.store, "host:1");
  EXPECT_EQ(job->place.security.token_file, "t");
  EXPECT_TRUE(parse_trace_options({"-h"})->help);
}

TEST(TraceOptions, EachMistakeIsNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes = {
      {{}, "give either"},
      {{"--seconds=1", "a.jsonl"}, "give either"},
      {{"--seconds=0"}, "option --seconds: got \"0\""},
      {{"--seconds=4000"}, "expected at most 3600"},
      {{"--once"}, "unknown option --once"},
      {{"-x"}, "unexpected argument \"-x\""},
      {{"-o"}, "--out needs a value"},
      {{"--profiler==f", "a"}, "option --profiler: got \"=f\""},
      {{"--profiler=w=", "a"}, "option --profiler"},
  };
  for (const auto& [arguments, message] : mistakes) {
    const absl::Status status = parse_trace_options(arguments).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace gradwire::inspect
