#include "gradwire/base/log/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/manual_clock.h"

namespace gradwire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FakeOutput : public ProgressOutput {
 public:
  bool enabled() const override { return on; }
  bool first_on_host() const override { return first; }
  bool can_move() const override { return moving; }
  void draw(const void*, absl::string_view text) override { printed.push_back(absl::StrCat("draw ", text)); }
  void clear(const void*) override {
    if (!printed.empty()) printed.push_back("clear");
  }
  void log(const ProgressState& state, absl::Duration elapsed, bool finished) override {
    printed.push_back(absl::StrCat(finished ? "last " : "log ", progress_text(state, elapsed)));
  }

  bool on = true;
  bool first = true;
  bool moving = false;
  std::vector<std::string> printed;
};

// Work that calls update() every 100 ms. Returns the texts printed meanwhile.
std::vector<std::string> work_for(absl::Duration time, FakeOutput& output, bool finish = false) {
  ManualClock clock;
  {
    Progress progress({&output, &clock});
    for (absl::Duration done; done < time; done += absl::Milliseconds(100)) {
      clock.advance(absl::Milliseconds(100));
      progress.update([] { return ProgressState{.text = "waiting"}; });
    }
    if (finish) progress.finish("joined");
  }
  return output.printed;
}

TEST(Progress, ShortWorkLeavesNoLineInALog) {
  FakeOutput output;
  EXPECT_THAT(work_for(absl::Seconds(9.9), output, /*finish=*/true), IsEmpty());
}

TEST(Progress, LogGetsOneLineEveryTenSecondsThenOneAMinute) {
  FakeOutput output;
  EXPECT_THAT(
      work_for(absl::Seconds(200), output),
      ElementsAre("log waiting (10s)", "log waiting (20s)", "log waiting (30s)", "log waiting (40s)",
                  "log waiting (50s)", "log waiting (1m)", "log waiting (2m)", "log waiting (3m)", "clear"));
}

TEST(Progress, LinesMissedInAPauseBecomeOne) {
  FakeOutput output;
  ManualClock clock;
  Progress progress({&output, &clock});
  const auto update = [&] { progress.update([] { return ProgressState{.text = "waiting"}; }); };
  clock.advance(absl::Minutes(10));
  update();
  update();
  clock.advance(absl::Seconds(59));
  update();
  EXPECT_THAT(output.printed, ElementsAre("log waiting (10m)"));
  clock.advance(absl::Seconds(1));
  update();
  EXPECT_THAT(output.printed, ElementsAre("log waiting (10m)", "log waiting (11m)"));
}

TEST(Progress, LogThatHasALineGetsALastOne) {
  FakeOutput output;
  EXPECT_THAT(work_for(absl::Seconds(12), output, /*finish=*/true),
              ElementsAre("log waiting (10s)", "clear", "last joined (12s)", "clear"));
}

TEST(Progress, MovingLineAppearsAfterASecondAndIsCleared) {
  FakeOutput output;
  output.moving = true;
  EXPECT_THAT(work_for(absl::Seconds(0.9), output, /*finish=*/true), IsEmpty());
  EXPECT_THAT(work_for(absl::Seconds(3.6), output, /*finish=*/true),
              ElementsAre("draw waiting (1s)", "draw waiting (2s)", "draw waiting (3s)", "clear", "clear"));
}

TEST(Progress, WorkInTheBackgroundGoesOnInTheLog) {
  FakeOutput output;
  output.moving = true;
  ManualClock clock;
  Progress progress({&output, &clock});
  const auto update = [&] { progress.update([] { return ProgressState{.text = "waiting"}; }); };
  clock.advance(absl::Seconds(5));
  update();
  output.moving = false;
  clock.advance(absl::Seconds(4));
  update();
  clock.advance(absl::Seconds(1));
  update();
  EXPECT_THAT(output.printed, ElementsAre("draw waiting (5s)", "log waiting (10s)"));
}

TEST(Progress, StateIsAskedForOnlyWhenItIsPrinted) {
  FakeOutput output;
  ManualClock clock;
  int asked = 0;
  Progress progress({&output, &clock});
  const auto update = [&] {
    progress.update([&] {
      ++asked;
      return ProgressState{.text = "waiting"};
    });
  };
  for (int i = 0; i < 99; ++i) {
    clock.advance(absl::Milliseconds(100));
    update();
  }
  EXPECT_EQ(asked, 0);
  clock.advance(absl::Milliseconds(100));
  update();
  update();
  EXPECT_EQ(asked, 1);
}

TEST(Progress, StateThatAnotherProcessReportsIsNotPrinted) {
  FakeOutput output;
  ManualClock clock;
  Progress progress({&output, &clock});
  int asked = 0;
  for (int i = 0; i < 30; ++i) {
    clock.advance(absl::Seconds(1));
    progress.update([&]() -> std::optional<ProgressState> {
      ++asked;
      return std::nullopt;
    });
  }
  EXPECT_EQ(asked, 3);
  progress.finish("joined");
  EXPECT_THAT(output.printed, IsEmpty());
}

TEST(Progress, WhatAllWorkersOfAHostWouldReportIsLoggedByOne) {
  for (const bool first : {true, false}) {
    for (const bool once : {true, false}) {
      FakeOutput output;
      output.first = first;
      ManualClock clock;
      Progress progress({.output = &output, .clock = &clock, .once_per_host = once});
      clock.advance(absl::Seconds(10));
      progress.update([] { return ProgressState{.text = "waiting"}; });
      EXPECT_EQ(output.printed.size(), first || !once ? 1u : 0u);
      // A moving line disturbs nobody.
      output.moving = true;
      progress.update([] { return ProgressState{.text = "moving"}; });
      EXPECT_EQ(output.printed.back(), "draw moving (10s)");
    }
  }
}

TEST(Progress, NothingIsPrintedWhereTheLogIsOff) {
  FakeOutput output;
  output.on = false;
  ManualClock clock;
  Progress progress({&output, &clock});
  EXPECT_EQ(progress.until_next(), absl::InfiniteDuration());
  clock.advance(absl::Seconds(100));
  progress.update([]() -> std::optional<ProgressState> {
    ADD_FAILURE();
    return std::nullopt;
  });
  progress.finish("joined");
  EXPECT_THAT(output.printed, IsEmpty());
}

TEST(Progress, WaitsAreToldWhenTheNextOutputIsDue) {
  FakeOutput output;
  ManualClock clock;
  Progress progress({&output, &clock});
  EXPECT_EQ(progress.until_next(), absl::Seconds(10));
  clock.advance(absl::Seconds(3));
  EXPECT_EQ(progress.until_next(), absl::Seconds(7));
  clock.advance(absl::Seconds(8));
  EXPECT_EQ(progress.until_next(), absl::ZeroDuration());
  output.moving = true;
  progress.update([] { return ProgressState{.text = "waiting"}; });
  EXPECT_EQ(progress.until_next(), ProgressSchedule::kRedraw);
}

TEST(Progress, ControlCharactersDoNotReachTheMovingLine) {
  FakeOutput output;
  output.moving = true;
  ManualClock clock;
  Progress progress({&output, &clock});
  clock.advance(absl::Seconds(2));
  progress.update([] { return ProgressState{.text = "waiting for \x1b[2J\n"}; });
  EXPECT_THAT(output.printed, ElementsAre("draw waiting for \\x1b[2J\\n (2s)"));
}

}  // namespace
}  // namespace gradwire
