#include "gradwire/tools/launch/rendezvous/beat_watch.h"

#include <gtest/gtest.h>

namespace gradwire::rendezvous {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(5);

class BeatWatchTest : public testing::Test {
 protected:
  void look(std::vector<std::optional<std::string>> beats, absl::Duration later = kInterval) {
    now_ += later;
    EXPECT_EQ(watch_.due(now_).size(), beats.size());
    watch_.looked(beats, now_);
  }
  bool lost(const std::string& id) const { return watch_.lost(id, now_); }

  BeatWatch watch_{kInterval, 3};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(BeatWatchTest, BeatThatStandsStillForAllAttemptsIsLost) {
  watch_.choose({"a", "b"});
  look({"1", "1"});
  look({"2", "1"});
  look({"3", "1"});
  EXPECT_FALSE(lost("b"));
  look({"4", "1"});
  EXPECT_TRUE(lost("b"));
  EXPECT_FALSE(lost("a"));
  look({"5", "2"});
  EXPECT_FALSE(lost("b"));
}

TEST_F(BeatWatchTest, NodeWithoutABeatIsLostToo) {
  watch_.choose({"a"});
  for (int i = 0; i < 4; ++i) look({std::nullopt});
  EXPECT_TRUE(lost("a"));
  EXPECT_FALSE(watch_.heard("a"));
}

TEST_F(BeatWatchTest, TimeWithoutLooksCountsForNobodysSilence) {
  watch_.choose({"a"});
  look({"1"});
  look({"1"}, absl::Hours(1));
  EXPECT_FALSE(lost("a"));
  look({"1"});
  look({"1"});
  EXPECT_FALSE(lost("a"));
  look({"1"});
  EXPECT_TRUE(lost("a"));
  // What was seen before a pause proves nothing after it.
  now_ += absl::Hours(1);
  EXPECT_FALSE(lost("a"));
}

TEST_F(BeatWatchTest, SilenceOfNewOnesBeginsWithTheFirstLook) {
  watch_.choose({"a"});
  for (int i = 0; i < 4; ++i) look({"1"});
  watch_.choose({"a", "b"});
  EXPECT_TRUE(lost("a"));
  look({"1", "7"});
  EXPECT_FALSE(lost("b"));
  EXPECT_FALSE(watch_.heard("b"));
  look({"1", "8"});
  EXPECT_TRUE(watch_.heard("b"));
}

TEST_F(BeatWatchTest, LooksAreAnIntervalApart) {
  EXPECT_EQ(watch_.next(), absl::InfiniteFuture());
  watch_.choose({"a"});
  EXPECT_LE(watch_.next(), now_);
  look({"1"});
  EXPECT_EQ(watch_.next(), now_ + kInterval);
  EXPECT_TRUE(watch_.due(now_).empty());
}

TEST_F(BeatWatchTest, AllAreGoneWhenTheirBeatsAreDeletedOrStandStill) {
  EXPECT_TRUE(watch_.all_gone(now_));
  watch_.choose({"a", "b"});
  EXPECT_FALSE(watch_.all_gone(now_));
  look({"1", "1"});
  look({std::nullopt, "1"});
  EXPECT_FALSE(watch_.all_gone(now_));
  look({std::nullopt, "1"});
  look({std::nullopt, "1"});
  EXPECT_TRUE(watch_.all_gone(now_));
}

}  // namespace
}  // namespace gradwire::rendezvous
