#include "gradwire/tools/inspect/dump/flight_join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/dump/dump_command.h"

namespace gradwire::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The records of one worker, written at `now` on its clock; its wall clock is `wall` ahead of that.
FlightFile worker(const std::string& name, uint64_t incarnation, int64_t now, int64_t wall = 0) {
  FlightFile file;
  file.path = name;
  file.title = name;
  file.incarnation = incarnation;
  file.clock_ns = now;
  file.wall_ns = now + wall;
  file.capacity = 16;
  file.recorded = 10;
  file.workers[incarnation] = name;
  file.truncated = false;
  return file;
}

FlightCall made(uint64_t caller, uint64_t number, uint64_t peer, int64_t began, int64_t ended = 0,
                const std::string& code = "OK") {
  FlightCall call;
  call.identity = {caller, number};
  call.made = true;
  call.peer = peer;
  call.name = absl::StrCat("f", number);
  call.began = began;
  call.ended = ended;
  if (ended != 0) call.code = code;
  return call;
}

FlightCall served(uint64_t caller, uint64_t number, int64_t began, int64_t ended = 0,
                  const std::string& code = "OK") {
  FlightCall call = made(caller, number, caller, began, ended, code);
  call.made = false;
  return call;
}

FlightCall below(FlightCall call, uint64_t worker, uint64_t number) {
  call.parent = {FlightParent::Kind::kCall, worker, number};
  return call;
}

TEST(FlightJoin, CallThatNeverArrivedIsFound) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("b", 2, 1000)};
  files[0].calls = {made(1, 1, 2, 100), made(1, 2, 2, 200, 300),
                    made(1, 3, 2, 400, 600, "DEADLINE_EXCEEDED")};
  files[1].calls = {served(1, 2, 210, 290)};
  const FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.never_seen.size(), 2u);
  EXPECT_EQ(join.never_seen[0]->identity.number, 1u);
  EXPECT_EQ(join.never_seen[1]->identity.number, 3u);
  EXPECT_TRUE(join.answers_lost.empty());
}

TEST(FlightJoin, CallThatTheCalleeCannotKnowIsNotReported) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("b", 2, 1000)};
  // Before the oldest record of b, whose ring has overflowed; after the file of b was written; waiting for a
  // credit; and to a worker without a file.
  files[0].calls = {made(1, 1, 2, 100), made(1, 2, 2, 5000), made(1, 3, 2, 600), made(1, 4, 9, 600)};
  files[0].calls[2].state = "waits for a credit";
  files[1].recorded = 100;
  files[1].calls = {served(7, 2, 500, 510)};
  EXPECT_TRUE(join_flight_files(files).never_seen.empty());
}

TEST(FlightJoin, LostAndLateAnswersAreFound) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("b", 2, 2000)};
  files[0].calls = {made(1, 1, 2, 100), made(1, 2, 2, 100, 200, "DEADLINE_EXCEEDED"),
                    // The error is that of the handler.
                    made(1, 3, 2, 100, 200, "NOT_FOUND"),
                    // It was answered after the file of a was written.
                    made(1, 4, 2, 100)};
  files[1].calls = {served(1, 1, 110, 190), served(1, 2, 110, 400), served(1, 3, 110, 190, "NOT_FOUND"),
                    served(1, 4, 110, 1500)};
  const FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.answers_lost.size(), 2u);
  EXPECT_EQ(join.answers_lost[0].made->identity.number, 1u);
  EXPECT_EQ(join.answers_lost[1].made->identity.number, 2u);
  EXPECT_EQ(join.answers_lost[1].served->ended, 400);
}

TEST(FlightJoin, OpenCallsOfSeveralWorkersFormChains) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("b", 2, 1000), worker("c", 3, 1000)};
  files[0].calls = {made(1, 1, 2, 100), made(1, 2, 2, 50, 60), made(1, 9, 3, 500)};
  files[1].calls = {served(1, 1, 110), below(made(2, 1, 3, 120), 1, 1), below(made(2, 2, 3, 130), 1, 1)};
  files[2].calls = {served(2, 1, 125), served(2, 2, 135), below(made(3, 1, 1, 140), 2, 2)};
  const FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.chains.size(), 5u);
  EXPECT_EQ(join.chains[0].made->identity, (rpc::CallIdentity{1, 1}));
  EXPECT_EQ(join.chains[0].depth, 0);
  EXPECT_NE(join.chains[0].served, nullptr);
  EXPECT_EQ(join.chains[1].made->identity, (rpc::CallIdentity{2, 1}));
  EXPECT_EQ(join.chains[1].depth, 1);
  EXPECT_EQ(join.chains[2].made->identity, (rpc::CallIdentity{2, 2}));
  EXPECT_EQ(join.chains[3].made->identity, (rpc::CallIdentity{3, 1}));
  EXPECT_EQ(join.chains[3].depth, 2);
  EXPECT_EQ(join.chains[3].served, nullptr);
  EXPECT_EQ(join.chains[4].made->identity, (rpc::CallIdentity{1, 9}));
  EXPECT_EQ(join.chains[4].depth, 0);
}

TEST(FlightJoin, ServedCallWithoutTheFileOfItsCallerBeginsAChain) {
  std::vector<FlightFile> files = {worker("b", 2, 1000)};
  files[0].calls = {served(1, 1, 110), below(made(2, 1, 3, 120), 1, 1)};
  const FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.chains.size(), 2u);
  EXPECT_EQ(join.chains[0].made, nullptr);
  EXPECT_EQ(join.chains[1].depth, 1);
}

// The clock of b is 5,000 ahead, and its file has another epoch. The way takes 40 and back 60.
TEST(FlightJoin, ClocksAreEstimatedFromTheFastestCall) {
  std::vector<FlightFile> files = {worker("a", 1, 1000, 70'000), worker("b", 2, 91'000'000, -90'925'000)};
  const int64_t b = 70'000 + 5'000 + 90'925'000;  // A time of a on the clock of b's file.
  files[0].calls = {made(1, 1, 2, 100, 300), made(1, 2, 2, 400, 4'500), made(1, 3, 2, 500)};
  files[1].calls = {served(1, 1, b + 140, b + 240), served(1, 2, b + 3'000, b + 3'100),
                    served(1, 3, b + 510)};
  FlightJoin join = join_flight_files(files);
  ASSERT_EQ(join.clocks.size(), 1u);
  EXPECT_EQ(join.clocks[0].from, 1u);
  EXPECT_EQ(join.clocks[0].to, 2u);
  EXPECT_EQ(join.clocks[0].calls, 2u);
  // Half of the way there and back, and what the clocks may drift in the time of both calls.
  EXPECT_GE(join.clocks[0].error_ns, 50);
  EXPECT_LE(join.clocks[0].error_ns, 55);
  EXPECT_NEAR(static_cast<double>(join.clocks[0].ahead_ns), 5'000, 50);

  // The same from a call in the other direction.
  files[0].calls = {served(2, 1, 140, 240)};
  files[1].calls = {made(2, 1, 1, b + 100, b + 300)};
  join = join_flight_files(files);
  ASSERT_EQ(join.clocks.size(), 1u);
  EXPECT_EQ(join.clocks[0].from, 1u);
  EXPECT_NEAR(static_cast<double>(join.clocks[0].ahead_ns), 5'000, 50);
}

TEST(FlightJoin, SeveralFilesOfAWorkerAreMerged) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("a", 1, 2000), worker("b", 2, 2000)};
  files[0].calls = {made(1, 1, 2, 100), made(1, 2, 2, 100)};
  files[1].calls = {made(1, 1, 2, 100, 1500)};
  files[2].calls = {served(1, 1, 110, 1400), served(1, 2, 110)};
  const FlightJoin join = join_flight_files(files);
  EXPECT_TRUE(join.answers_lost.empty());
  ASSERT_EQ(join.chains.size(), 1u);
  EXPECT_EQ(join.chains[0].made->identity.number, 2u);
}

// Malformed files may say anything; the result is still finite.
TEST(FlightJoin, ImpossibleFilesAreSurvived) {
  std::vector<FlightFile> files = {worker("a", 1, 1000), worker("b", 2, 1000)};
  // Each is the parent of the other one, one is its own parent, one is of another caller, and one has ended
  // before it began.
  files[0].calls = {below(made(1, 1, 1, 100), 1, 2), below(made(1, 2, 1, 100), 1, 1),
                    below(made(1, 3, 1, 100), 1, 3), made(8, 1, 2, 100), made(1, 5, 2, 900, 100)};
  files[1].calls = {served(1, 5, 100, 900), served(1, 1, 50)};
  const FlightJoin join = join_flight_files(files);
  EXPECT_EQ(join.chains.size(), 3u);
  EXPECT_TRUE(join.clocks.empty());
}

std::string record_of(const std::string& worker, const std::string& incarnation) {
  return absl::StrCat(
      R"({"type":"flight","version":1,"source":"agent","reason":"a call timed out","process":12,)",
      R"("wall_ns":1790000002000000000,"clock_ns":9000000,"worker":")", worker, R"(","id":0,"incarnation":")",
      incarnation, R"(","dump":"ordinary","capacity":4,"recorded":1})", "\n");
}

TEST(DumpCommand, PrintsWhatTheFilesOfADirectorySay) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/dump-", ::getpid());
  ASSERT_EQ(::mkdir(directory.c_str(), 0700), 0);
  std::ofstream(directory + "/a.jsonl")
      << record_of("a", "0xa")
      << R"({"type":"call","side":"made","caller":"0xa","peer":"0xb","number":7,"name":"demo::f",)"
      << R"("began":100})"
      << "\n"
      << R"({"type":"pass","root":"0xa","number":3,"name":"backward pass","began":5})"
      << "\n";
  std::ofstream(directory + "/b.jsonl")
      << record_of("b", "0xb")
      << R"({"type":"call","side":"served","caller":"0xa","peer":"0xa","number":7,"name":"demo::f",)"
      << R"("began":200,"started":210})"
      << "\n"
      << "broken\n"
      << R"({"type":"end","lines":1})"
      << "\n";
  std::ofstream(directory + "/group-1.jsonl")
      << R"({"type":"flight","version":1,"source":"group","reason":"r","process":1,"wall_ns":1,)"
      << R"("clock_ns":9000000,)"
      << R"("title":"group \"g\", rank 1 of 2"})"
      << "\n"
      << R"({"type":"collective","sequence":4,"operation":"all_reduce","state":"running","began":1000000})"
      << "\n";
  std::ofstream(directory + "/other.jsonl") << "{}\n";
  std::string out;
  std::string errors;
  EXPECT_EQ(dump_command({directory}, out, errors), 0);
  EXPECT_THAT(
      out, AllOf(HasSubstr("worker \"a\", process 12, written 2026-09-21 14:13:22.000 UTC: a call timed out"),
                 HasSubstr("1 lines are malformed"), HasSubstr("the end is missing"),
                 HasSubstr("  \"a\" -> \"b\" \"demo::f\" (0xa#7), at the callee: running\n"),
                 HasSubstr("\"a\" takes part in pass #3 of \"a\""),
                 HasSubstr("Operations of group \"g\", rank 1 of 2 that are open or have failed (the last "
                           "is #4):\n  #4 all_reduce: running, called 8.000 ms before"),
                 HasSubstr("Calls that their callee has never seen: none")));
  EXPECT_THAT(errors, AllOf(HasSubstr("other.jsonl"), Not(HasSubstr("a.jsonl"))));

  out.clear();
  EXPECT_EQ(dump_command({"--lines=1", directory + "/a.jsonl", directory + "/b.jsonl"}, out, errors), 0);
  EXPECT_THAT(out, HasSubstr("and 1 more (--lines)"));
}

TEST(DumpCommand, WrongArgumentsAreExplained) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"--lines=0", "x"}, {"--lines=many", "x"}, {"--unknown"}}) {
    std::string out;
    std::string errors;
    EXPECT_EQ(dump_command(arguments, out, errors), 2);
    EXPECT_THAT(errors, HasSubstr("usage: inspect dump"));
    EXPECT_EQ(out, "");
  }
  std::string out;
  std::string errors;
  EXPECT_EQ(dump_command({"/nowhere"}, out, errors), 1);
  EXPECT_THAT(errors, HasSubstr("/nowhere"));
}

}  // namespace
}  // namespace gradwire::tools
