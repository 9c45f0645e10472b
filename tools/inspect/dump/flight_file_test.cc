#include "gradwire/tools/inspect/dump/flight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace gradwire::tools {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] =
    R"({"type":"flight","version":1,"source":"agent","reason":"why","process":12,"wall_ns":2000000,)"
    R"("clock_ns":1000000,"worker":"a","id":0,"incarnation":"0xa","dump":"ordinary","capacity":4,"recorded":2})"
    "\n";
constexpr char kMade[] =
    R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"f","parent":"call",)"
    R"("parent_worker":"0xc","parent_number":3,"began":100,"started":150,"ended":400,"code":"OK"})"
    "\n";

TEST(FlightFile, LinesOfAnAgentAreRead) {
  const absl::StatusOr<FlightFile> file = parse_flight_file(absl::StrCat(
      kHeader, R"({"type":"worker","incarnation":"0xb","id":1,"name":"b"})", "\n", kMade,
      R"({"type":"pass","root":"0xa","number":2,"name":"backward pass","began":5})", "\n",
      R"({"type":"invented","by":"a later version"})", "\n", R"({"type":"end","lines":4})", "\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->title, "a");
  EXPECT_EQ(file->incarnation, 0xau);
  EXPECT_EQ(file->reason, "why");
  EXPECT_FALSE(file->crash);
  EXPECT_FALSE(file->truncated);
  EXPECT_EQ(file->bad_lines, 0u);
  EXPECT_EQ(file->workers.at(0xb), "b");
  EXPECT_EQ(file->workers.at(0xa), "a");
  ASSERT_EQ(file->calls.size(), 1u);
  const FlightCall& call = file->calls[0];
  EXPECT_TRUE(call.made);
  EXPECT_EQ(call.identity, (rpc::CallIdentity{0xa, 7}));
  EXPECT_EQ(call.peer, 0xbu);
  EXPECT_EQ(call.parent.kind, FlightParent::Kind::kCall);
  EXPECT_EQ(call.parent.worker, 0xcu);
  EXPECT_EQ(call.parent.number, 3u);
  EXPECT_EQ(call.started, 150);
  EXPECT_EQ(call.ended, 400);
  EXPECT_EQ(call.code, "OK");
  ASSERT_EQ(file->passes.size(), 1u);
  EXPECT_EQ(file->passes[0].ended, 0);
}

TEST(FlightFile, ATraceIsAParent) {
  const absl::StatusOr<FlightFile> file = parse_flight_file(absl::StrCat(
      kHeader, R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"f",)",
      R"("parent":"trace","trace_high":"0x1f","trace_low":"0x2","began":100})", "\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->calls.at(0).parent.kind, FlightParent::Kind::kTrace);
  EXPECT_EQ(file->calls.at(0).parent.worker, 0x1fu);
  EXPECT_EQ(file->calls.at(0).parent.number, 2u);
}

TEST(FlightFile, LinesOfAGroupAreRead) {
  const absl::StatusOr<FlightFile> file = parse_flight_file(
      R"({"type":"flight","version":1,"source":"group","reason":"","process":1,"wall_ns":1,"clock_ns":1,)"
      R"("title":"group \"g\""})"
      "\n"
      R"({"type":"collective","sequence":4,"operation":"all_reduce","state":"failed","code":"ABORTED",)"
      R"("began":3})"
      "\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->is_group);
  EXPECT_EQ(file->title, "group \"g\"");
  ASSERT_EQ(file->collectives.size(), 1u);
  EXPECT_EQ(file->collectives[0].sequence, 4);
  EXPECT_EQ(file->collectives[0].code, "ABORTED");
  EXPECT_TRUE(file->truncated);
}

TEST(FlightFile, OpenCallOfListAndRingIsOne) {
  const absl::StatusOr<FlightFile> file = parse_flight_file(absl::StrCat(
      kHeader,
      R"({"type":"open","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"a long name",)"
      R"("since":100,)"
      R"("deadline":900,"state":"sent"})",
      "\n",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name_end":"name","began":100})",
      "\n",
      // The same number of another side is another call.
      R"({"type":"call","side":"served","caller":"0xb","peer":"0xb","number":7,"name":"g","began":100})",
      "\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->calls.size(), 2u);
  EXPECT_FALSE(file->calls[0].made);
  EXPECT_EQ(file->calls[1].state, "sent");
  EXPECT_EQ(file->calls[1].name, "a long name");
  EXPECT_EQ(file->calls[1].deadline, 900);
}

TEST(FlightFile, MalformedLinesAreCountedAndSkipped) {
  const std::string bad[] = {
      "nonsense",
      "",
      "[]",
      "7",
      R"({"type":"call"})",
      R"({"no":"type"})",
      R"({"type":["call"]})",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":1,"name":"f","began":{"x":1}})",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":1,"name":"f","began":-1})",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":1,"name":"f","began":1e300})",
      R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":1,"began":18446744073709551615})",
      R"({"type":"call","side":"made","caller":"xyz","peer":"0xb","number":1,"name":"f","began":1})",
      R"({"type":"call","side":"both","caller":"0xa","peer":"0xb","number":1,"name":"f","began":1})",
      R"({"type":"worker","incarnation":"0x0","name":"z"})",
      "{\"type\":\"worker\",\"incarnation\":\"0x5\",\"name\":\"\xff\"}",
      absl::StrCat(R"({"type":"worker","name":")", std::string(10'000, 'x'), "\"}"),
      std::string(5'000, '['),
      R"({"type":"collective"})",
      R"({"type":"pass","root":"0xa"})",
  };
  std::string text = kHeader;
  for (const std::string& line : bad) absl::StrAppend(&text, line, "\n");
  const absl::StatusOr<FlightFile> file = parse_flight_file(absl::StrCat(text, kMade));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bad_lines, std::size(bad));
  EXPECT_EQ(file->calls.size(), 1u);
}

TEST(FlightFile, TextsLoseWhatATerminalMustNotGet) {
  const absl::StatusOr<FlightFile> file = parse_flight_file(
      absl::StrCat(kHeader, R"({"type":"worker","incarnation":"0xb","name":"\u001b[2J\n\u202eb"})", "\n"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->workers.at(0xb), "?[2J????b");
}

TEST(FlightFile, OtherFilesAreRefused) {
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string(kMade), std::string("{}\n"),
        std::string(R"({"type":"flight","version":2,"source":"agent","incarnation":"0xa"})"),
        std::string(R"({"type":"flight","version":1,"source":"agent"})"), std::string(100'000, '{')}) {
    EXPECT_EQ(parse_flight_file(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text.substr(0, 50);
  }
}

// Any bytes: neither a crash nor an error other than the documented one.
TEST(FlightFile, RandomChangesNeverCrash) {
  const std::string valid = absl::StrCat(
      kHeader, kMade, R"({"type":"open","side":"served","caller":"0xb","peer":"0xb","number":1,"name":"g",)",
      R"("since":5,"deadline":9,"state":"running"})", "\n", R"({"type":"end","lines":2})", "\n");
  std::mt19937 random(1);
  for (int i = 0; i < 5'000; ++i) {
    std::string text = valid;
    const int changes = 1 + static_cast<int>(random() % 5);
    for (int n = 0; n < changes; ++n) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, random() % 20);
      } else if (random() % 2 == 0) {
        text.insert(at, std::string(random() % 5, static_cast<char>(random())));
      } else {
        text[at] = static_cast<char>(random());
      }
      if (text.empty()) break;
    }
    const absl::StatusOr<FlightFile> file = parse_flight_file(text);
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    for (const FlightCall& call : file->calls) EXPECT_LE(call.name.size(), FlightFile::kMaxText + 3);
  }
}

TEST(FlightFile, OnlyRegularFilesAreReadFromADirectory) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/records-", ::getpid());
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  std::ofstream(directory + "/b.jsonl") << kHeader;
  std::ofstream(directory + "/a.jsonl") << kHeader;
  std::ofstream(directory + "/a.jsonl.partial") << kHeader;
  ASSERT_EQ(::mkfifo((directory + "/c.jsonl").c_str(), 0600), 0);
  const absl::StatusOr<std::vector<std::string>> found = find_flight_files(directory);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[0], directory + "/a.jsonl");
  EXPECT_TRUE(read_flight_file((*found)[0]).ok());
  const absl::Status refused = read_flight_file((*found)[2]).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("c.jsonl is not a regular file"));
  EXPECT_EQ(read_flight_file(directory + "/none").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(find_flight_files(directory + "/none").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradwire::tools
