#include "gradwire/tools/launch/rendezvous/beat_watch.h"

#include <gtest/gtest.h>

namespace gradwire::rendezvous {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(5);

class BeatWatchTest : public ::testing::Test {
 protected:
  void read(std::vector<std::optional<std::string>> beats, absl::Duration later = kInterval) {
    now_ += later;
    EXPECT_EQ(watch_.due(now_).size(), beats.size());
    watch_.on_beats_read(beats, now_);
  }
  bool lost(const std::string& id) const { return watch_.lost(id, now_); }

  BeatWatch watch_{kInterval, 3};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(BeatWatchTest, BeatThatDoesNotMoveForAllAttemptsIsLost) {
  watch_.choose({"a", "b"});
  read({"1", "1"});
  read({"2", "1"});
  read({"3", "1"});
  EXPECT_FALSE(lost("b"));
  read({"4", "1"});
  EXPECT_TRUE(lost("b"));
  EXPECT_FALSE(lost("a"));
  read({"5", "2"});
  EXPECT_FALSE(lost("b"));
}

TEST_F(BeatWatchTest, NodeWithoutABeatIsLostToo) {
  watch_.choose({"a"});
  for (int i = 0; i < 4; ++i) read({std::nullopt});
  EXPECT_TRUE(lost("a"));
  EXPECT_FALSE(watch_.has_moved("a"));
}

TEST_F(BeatWatchTest, TimeWithoutReadsDoesNotCount) {
  watch_.choose({"a"});
  read({"1"});
  read({"1"}, absl::Hours(1));
  EXPECT_FALSE(lost("a"));
  read({"1"});
  read({"1"});
  EXPECT_FALSE(lost("a"));
  read({"1"});
  EXPECT_TRUE(lost("a"));
  // A read before a pause does not count after it.
  now_ += absl::Hours(1);
  EXPECT_FALSE(lost("a"));
}

TEST_F(BeatWatchTest, TimeOfNewNodesBeginsWithTheFirstRead) {
  watch_.choose({"a"});
  for (int i = 0; i < 4; ++i) read({"1"});
  watch_.choose({"a", "b"});
  EXPECT_TRUE(lost("a"));
  read({"1", "7"});
  EXPECT_FALSE(lost("b"));
  EXPECT_FALSE(watch_.has_moved("b"));
  read({"1", "8"});
  EXPECT_TRUE(watch_.has_moved("b"));
}

TEST_F(BeatWatchTest, ReadsAreAnIntervalApart) {
  EXPECT_EQ(watch_.next(), absl::InfiniteFuture());
  watch_.choose({"a"});
  EXPECT_LE(watch_.next(), now_);
  read({"1"});
  EXPECT_EQ(watch_.next(), now_ + kInterval);
  EXPECT_TRUE(watch_.due(now_).empty());
}

TEST_F(BeatWatchTest, AllAreGoneWhenTheirBeatsAreDeletedOrDoNotMove) {
  EXPECT_TRUE(watch_.all_gone(now_));
  watch_.choose({"a", "b"});
  EXPECT_FALSE(watch_.all_gone(now_));
  read({"1", "1"});
  read({std::nullopt, "1"});
  EXPECT_FALSE(watch_.all_gone(now_));
  read({std::nullopt, "1"});
  read({std::nullopt, "1"});
  EXPECT_TRUE(watch_.all_gone(now_));
}

}  // namespace
}  // namespace gradwire::rendezvous
