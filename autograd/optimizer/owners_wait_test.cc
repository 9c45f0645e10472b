#include "gradwire/autograd/optimizer/owners_wait.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/base/testing/recorded_progress.h"

namespace gradwire::autograd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A clock on which two minutes pass with each call of now(), so that progress is always due.
class LeapingClock : public Clock {
 public:
  absl::Time now() const override { return absl::UnixEpoch() + absl::Minutes(2 * ++calls_); }
  void wait_until(Mutex&, CondVar&, absl::Time) override {}

 private:
  mutable std::atomic<int> calls_{0};
};

TEST(OwnersWait, NamesTheOwnersThatHaveNotAnswered) {
  std::vector<Promise<int>> answers(3);
  std::vector<Future<int>> calls;
  for (const Promise<int>& answer : answers) calls.push_back(answer.future());
  RecordedProgress shown;
  LeapingClock clock;
  answers[1].set_value(1);
  std::thread waiting([&] {
    show_owners_wait("DistributedOptimizer<SGD>::save", {"ps0", "ps1", "ps2"}, calls, {&shown, &clock});
  });
  shown.wait_for(1);
  answers[0].set_value(0);
  shown.wait_for(2);
  answers[2].set_value(2);
  waiting.join();
  EXPECT_THAT(
      shown.texts(),
      ElementsAre(
          "DistributedOptimizer<SGD>::save: 1 of 3 owners have answered; waiting for \"ps0\", \"ps2\"",
          "DistributedOptimizer<SGD>::save: 2 of 3 owners have answered; waiting for \"ps2\"",
          "DistributedOptimizer<SGD>::save: all owners have answered"));
  EXPECT_EQ(shown.states()[0].done, 1);
  EXPECT_EQ(shown.states()[0].total, 3);
}

TEST(OwnersWait, AnswersThatComeSoonLeaveNoLine) {
  Promise<void> failed, done;
  failed.set_error(absl::UnavailableError("the worker is dead"));
  done.set_value();
  RecordedProgress shown;
  show_owners_wait("load", {"ps0", "ps1"}, std::vector<Future<void>>{failed.future(), done.future()},
                   {&shown});
  EXPECT_THAT(shown.texts(), IsEmpty());
}

TEST(OwnersWait, WithoutAMissingOwnerThereIsNothingToSay) {
  EXPECT_FALSE(owners_state("save", {"ps0", "ps1"}, [](std::size_t) { return true; }).has_value());
}

TEST(OwnersWait, LongListIsCut) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("ps" + std::to_string(i));
  const auto state = owners_state("save", names, [](std::size_t i) { return i >= 10; });
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->text,
            "save: 90 of 100 owners have answered; waiting for \"ps0\", \"ps1\", \"ps2\", \"ps3\", \"ps4\", "
            "\"ps5\", \"ps6\", \"ps7\" and 2 more");
}

}  // namespace
}  // namespace gradwire::autograd
