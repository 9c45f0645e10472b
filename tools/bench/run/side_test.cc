#include "gradwire/tools/bench/run/side.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/tools/bench/run/serve_participant.h"
#include "gtest/gtest.h"

// This program is its own participant, as the bench is.
namespace gradwire::bench {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class FakeParticipant final : public Participant {
 public:
  std::string listen(const Place& place) override {
    return address_of(place.rank) + " " + std::to_string(getpid());
  }
  void join(const Place& place) override { place_ = place; }
  Measurement run(const Task& task) override {
    if (task.case_name == "throws") throw std::runtime_error("it did not work\nand a stack");
    if (task.case_name == "dies") {
      std::fprintf(stderr, "the last words\n");
      _exit(3);
    }
    if (task.case_name == "hangs") pause();
    if (task.case_name == "kills") {
      const bool killed =
          kill(std::stoi(place_.addresses[0].substr(std::strlen("address 0 "))), SIGKILL) == 0;
      return {.figures = {{"killed", killed ? 1.0 : 0.0}}};
    }
    if (task.case_name == "limit") {
      rlimit descriptors{};
      getrlimit(RLIMIT_NOFILE, &descriptors);
      return {.figures = {{"descriptors", static_cast<double>(descriptors.rlim_cur)}}};
    }
    bool knows_all = place_.addresses.size() == 2;
    for (int rank = 0; knows_all && rank < 2; ++rank) {
      knows_all = place_.addresses[static_cast<std::size_t>(rank)].rfind(address_of(rank), 0) == 0;
    }
    return {.micros = {static_cast<float>(place_.rank), knows_all ? 1.0F : 0.0F}, .calls = task.depth};
  }

 private:
  static std::string address_of(int rank) { return "address " + std::to_string(rank); }

  Place place_;
};

Side::Options options() { return {.role = "fake", .transport = "none", .timeout = absl::Seconds(20)}; }

std::unique_ptr<Side> started(Side::Options options) {
  auto side = Side::start(options);
  EXPECT_TRUE(side.ok()) << side.status();
  return side.ok() ? *std::move(side) : nullptr;
}

TEST(Side, TheLastMemberRunsAlone) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  const auto round = side->run({.case_name = "any", .seconds = 0, .depth = 7}, false);
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(1));
  EXPECT_THAT(round->members[0].micros, ElementsAre(1, 1));
  EXPECT_EQ(round->members[0].calls, 7);
}

TEST(Side, AllMembersRunTogether) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  const auto round = side->run({.case_name = "any", .seconds = 0}, true);
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(2));
  EXPECT_THAT(round->members[0].micros, ElementsAre(0, 1));
}

TEST(Side, StoppedBetweenRunsStillAnswers) {
  Side::Options stopped = options();
  stopped.stop_between = true;
  const auto side = started(stopped);
  ASSERT_NE(side, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(side->run({.case_name = "any", .seconds = 0}, true).ok());
}

TEST(Side, AnErrorNamesTheMemberAndIsOneLine) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  const absl::Status status = side->run({.case_name = "throws", .seconds = 0}, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(status.message(), "fake over none, member 1: it did not work");
}

TEST(Side, ADeadMemberIsReportedWithWhatItPrinted) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  const absl::Status status = side->run({.case_name = "dies", .seconds = 0}, false).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the last words"));
}

TEST(Side, WhatTheOthersSayOfADeadMemberComesWithTheDeathItself) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  EXPECT_FALSE(side->run_last_task({.case_name = "dies", .seconds = 0}).ok());
  const absl::Status status = side->run({.case_name = "throws", .seconds = 0}, true).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("member 1"), HasSubstr("printed: the last words")));
}

TEST(Side, TheLastTaskOfASideMayKillAnotherMember) {
  const auto side = started(options());
  ASSERT_NE(side, nullptr);
  const auto round = side->run_last_task({.case_name = "kills", .seconds = 0});
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(1));
  EXPECT_EQ(figure(round->members[0].figures, "killed"), 1);
}

TEST(Side, MembersAreBoundInTheirDescriptors) {
  Side::Options few = options();
  few.descriptors = 100;
  const auto side = started(few);
  ASSERT_NE(side, nullptr);
  const auto round = side->run({.case_name = "limit", .seconds = 0}, false);
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_EQ(figure(round->members[0].figures, "descriptors"), 100);
}

TEST(Side, AHangingMemberEndsTheWait) {
  Side::Options impatient = options();
  impatient.timeout = absl::Milliseconds(300);
  const auto side = started(impatient);
  ASSERT_NE(side, nullptr);
  EXPECT_EQ(side->run({.case_name = "hangs", .seconds = 0}, false).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(Side, AParticipantThatDoesNotStartIsReported) {
  Side::Options unknown = options();
  unknown.role = "unknown";
  EXPECT_EQ(Side::start(unknown).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  constexpr int kChannelFd = 3;
  if (argc > 1 && std::strcmp(argv[1], "--participant=fake") == 0) {
    gradwire::bench::FakeParticipant participant;
    gradwire::bench::serve_participant(kChannelFd, participant);
  }
  if (argc > 1 && std::strcmp(argv[1], "--participant=unknown") == 0) return 2;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
