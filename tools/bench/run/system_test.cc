#include "gradwire/tools/bench/run/system.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gradwire/tools/bench/run/serve_process.h"
#include "gtest/gtest.h"

// As the bench does, this program starts itself again for each bench process.
namespace gradwire::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FakeProcess final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    return address_of(endpoint.rank) + " " + std::to_string(getpid());
  }
  void join(const Endpoint& endpoint) override { endpoint_ = endpoint; }
  Measurement run(const Task& task) override {
    if (task.case_name == "throws") throw std::runtime_error("it did not work\nand a stack");
    if (task.case_name == "dies") {
      std::fprintf(stderr, "the last words\n");
      _exit(3);
    }
    if (task.case_name == "hangs") pause();
    if (task.case_name == "kills") {
      const bool killed =
          kill(std::stoi(endpoint_.addresses[0].substr(std::strlen("address 0 "))), SIGKILL) == 0;
      return {.figures = {{"killed", killed ? 1.0 : 0.0}}};
    }
    if (task.case_name == "limit") {
      rlimit descriptors{};
      getrlimit(RLIMIT_NOFILE, &descriptors);
      return {.figures = {{"descriptors", static_cast<double>(descriptors.rlim_cur)}}};
    }
    bool knows_all = endpoint_.addresses.size() == 2;
    for (int rank = 0; knows_all && rank < 2; ++rank) {
      knows_all = endpoint_.addresses[static_cast<std::size_t>(rank)].rfind(address_of(rank), 0) == 0;
    }
    return {.micros = {static_cast<float>(endpoint_.rank), knows_all ? 1.0F : 0.0F}, .calls = task.depth};
  }

 private:
  static std::string address_of(int rank) { return "address " + std::to_string(rank); }

  Endpoint endpoint_;
};

System::Options options() { return {.role = "fake", .transport = "none", .timeout = absl::Seconds(20)}; }

std::unique_ptr<System> started(System::Options options) {
  auto system = System::start(options);
  EXPECT_TRUE(system.ok()) << system.status();
  return system.ok() ? *std::move(system) : nullptr;
}

TEST(System, TheLastMemberRunsAlone) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  const auto round = system->run({.case_name = "any", .seconds = 0, .depth = 7});
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(1));
  EXPECT_THAT(round->members[0].micros, ElementsAre(1, 1));
  EXPECT_EQ(round->members[0].calls, 7);
}

TEST(System, AllMembersRunTogether) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  const auto round = system->run({.case_name = "any", .seconds = 0}, 0);
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(2));
  EXPECT_THAT(round->members[0].micros, ElementsAre(0, 1));
}

TEST(System, TheLastMembersRunTogether) {
  System::Options three = options();
  three.members = 3;
  const auto system = started(three);
  ASSERT_NE(system, nullptr);
  const auto ranks = [&](int callers) {
    std::vector<float> result;
    const auto round = system->run({.case_name = "any", .seconds = 0}, callers);
    EXPECT_TRUE(round.ok()) << round.status();
    if (!round.ok()) return result;
    for (const Measurement& member : round->members) result.push_back(member.micros.at(0));
    return result;
  };
  EXPECT_THAT(ranks(2), ElementsAre(1, 2));
  EXPECT_THAT(ranks(3), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks(4), ElementsAre(0, 1, 2));
}

TEST(System, StoppedBetweenRunsStillAnswers) {
  System::Options stopped = options();
  stopped.stop_between = true;
  const auto system = started(stopped);
  ASSERT_NE(system, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(system->run({.case_name = "any", .seconds = 0}, 0).ok());
}

TEST(System, AnErrorNamesTheMemberAndIsOneLine) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  const absl::Status status = system->run({.case_name = "throws", .seconds = 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(status.message(), "fake over none, member 1: it did not work");
}

TEST(System, ADeadMemberIsReportedWithWhatItPrinted) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  const absl::Status status = system->run({.case_name = "dies", .seconds = 0}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the last words"));
}

TEST(System, AnErrorCausedByADeadMemberReportsTheDeath) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  EXPECT_FALSE(system->run_last_task({.case_name = "dies", .seconds = 0}).ok());
  const absl::Status status = system->run({.case_name = "throws", .seconds = 0}, 0).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("member 1"), HasSubstr("printed: the last words")));
}

TEST(System, TheLastTaskOfASystemMayKillAnotherMember) {
  const auto system = started(options());
  ASSERT_NE(system, nullptr);
  const auto round = system->run_last_task({.case_name = "kills", .seconds = 0});
  ASSERT_TRUE(round.ok()) << round.status();
  ASSERT_THAT(round->members, SizeIs(1));
  EXPECT_EQ(figure(round->members[0].figures, "killed"), 1);
}

TEST(System, MembersAreBoundInTheirDescriptors) {
  System::Options few = options();
  few.descriptors = 100;
  const auto system = started(few);
  ASSERT_NE(system, nullptr);
  const auto round = system->run({.case_name = "limit", .seconds = 0});
  ASSERT_TRUE(round.ok()) << round.status();
  EXPECT_EQ(figure(round->members[0].figures, "descriptors"), 100);
}

TEST(System, AHangingMemberEndsTheWait) {
  System::Options impatient = options();
  impatient.timeout = absl::Milliseconds(300);
  const auto system = started(impatient);
  ASSERT_NE(system, nullptr);
  EXPECT_EQ(system->run({.case_name = "hangs", .seconds = 0}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(System, AParticipantThatDoesNotStartIsReported) {
  System::Options unknown = options();
  unknown.role = "unknown";
  EXPECT_EQ(System::start(unknown).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace gradwire::bench

int main(int argc, char** argv) {
  constexpr int kChannelFd = 3;
  if (argc > 1 && std::strcmp(argv[1], "--participant=fake") == 0) {
    gradwire::bench::FakeProcess process;
    gradwire::bench::serve_process(kChannelFd, process);
  }
  if (argc > 1 && std::strcmp(argv[1], "--participant=unknown") == 0) return 2;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
