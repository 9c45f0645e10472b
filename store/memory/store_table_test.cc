#include "gradwire/store/memory/store_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<uint64_t> ids(const StoreTable::Wakeups& wakeups) {
  std::vector<uint64_t> result;
  for (const StoreTable::Wakeup& wakeup : wakeups) result.push_back(wakeup.waiter);
  return result;
}

TEST(StoreTable, WaitIsWokenOnceByTheLastOfItsKeys) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"a", "b", "a"}));
  ASSERT_TRUE(table.set("a", "", wakeups).ok());
  ASSERT_TRUE(table.set("a", "again", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  ASSERT_TRUE(table.set("b", "", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
  EXPECT_EQ(table.waiters().size(), 0);
  EXPECT_EQ(table.waiters().num_awaited_names(), 0);
}

TEST(StoreTable, KeyDeletedBeforeTheLastComesIsMissedAgain) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"a", "b"}));
  ASSERT_TRUE(table.set("a", "", wakeups).ok());
  EXPECT_TRUE(table.erase("a"));
  ASSERT_TRUE(table.set("b", "", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  ASSERT_TRUE(table.set("a", "", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
}

TEST(StoreTable, KeyThatWasThereAtFirstAndIsDeletedIsMissed) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.set("a", "", wakeups).ok());
  EXPECT_FALSE(table.wait(1, {"a", "b"}));
  EXPECT_TRUE(table.erase("a"));
  ASSERT_TRUE(table.set("b", "", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  EXPECT_THAT(table.drop(1), ElementsAre("a"));
}

TEST(StoreTable, WaitersOfOneKeyAreWokenOldestFirst) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  for (uint64_t id : {5, 3, 9, 4}) EXPECT_EQ(table.watch(id, "k", std::nullopt), nullptr);
  ASSERT_TRUE(table.set("k", "v", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(3, 4, 5, 9));
  for (const StoreTable::Wakeup& wakeup : wakeups) EXPECT_EQ(*wakeup.value, "v");
}

TEST(StoreTable, WatchIgnoresItsLastValueAndDeletion) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.set("k", "1", wakeups).ok());
  EXPECT_EQ(table.watch(1, "k", "1"), nullptr);
  EXPECT_TRUE(table.erase("k"));
  ASSERT_TRUE(table.set("k", "1", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  ASSERT_EQ(*table.add("k", 1, wakeups), 2);
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
}

TEST(StoreTable, DroppedWaiterIsForgotten) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"a", "b"}));
  EXPECT_EQ(table.watch(2, "a", std::nullopt), nullptr);
  EXPECT_THAT(table.drop(1), ElementsAre("a", "b"));
  EXPECT_THAT(table.drop(1), IsEmpty());
  EXPECT_THAT(table.drop(2), ElementsAre("a"));
  EXPECT_EQ(table.waiters().num_awaited_names(), 0);
  ASSERT_TRUE(table.set("a", "", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
}

TEST(StoreTable, CompareSetOfAMissingKeyExpectsNothing) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_EQ(*table.compare_set("k", "old", "new", wakeups), "old");
  EXPECT_EQ(table.find("k"), nullptr);
  EXPECT_EQ(*table.compare_set("k", "", "new", wakeups), "new");
  EXPECT_EQ(*table.compare_set("k", "", "newer", wakeups), "new");
  EXPECT_EQ(*table.find("k"), "new");
}

TEST(StoreTable, FullTableRefusesAndStaysAsItWas) {
  StoreTable table(/*max_bytes=*/10);
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.set("key", "1234567", wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.set("k", "", wakeups)));
  EXPECT_TRUE(absl::IsResourceExhausted(table.set("key", "12345678", wakeups)));
  EXPECT_EQ(*table.find("key"), "1234567");
  // Replacing counts only the difference, and deleting gives the room back.
  EXPECT_TRUE(table.set("key", "7654321", wakeups).ok());
  EXPECT_TRUE(table.erase("key"));
  EXPECT_TRUE(table.set("yek", "1234567", wakeups).ok());
}

TEST(StoreTable, ItemGoesToTheOldestPopAndWakesNoWait) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"q"}));
  EXPECT_EQ(table.wait_for_item(2, "q"), nullptr);
  EXPECT_EQ(table.wait_for_item(3, "q"), nullptr);
  ASSERT_TRUE(table.push("q", "a", wakeups).ok());
  ASSERT_TRUE(table.push("q", "b", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(2, 3));
  EXPECT_EQ(*wakeups[1].value, "b");
  EXPECT_EQ(table.queue_len("q"), 0);
  ASSERT_TRUE(table.push("q", "c", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(2, 3, 1));
  EXPECT_EQ(*table.pop("q"), "c");
  EXPECT_EQ(table.pop("q"), nullptr);
  EXPECT_EQ(table.waiters().num_awaited_names(), 0);
}

TEST(StoreTable, QueueThatIsEmptyAgainIsMissedAgain) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"q", "k"}));
  ASSERT_TRUE(table.push("q", "a", wakeups).ok());
  ASSERT_TRUE(table.push("q", "b", wakeups).ok());
  table.pop("q");
  table.pop("q");
  ASSERT_TRUE(table.set("k", "", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  // The key of the same name also counts, and only once.
  ASSERT_TRUE(table.set("q", "", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
}

TEST(StoreTable, KeyAndQueueOfOneNameCountOnce) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  EXPECT_FALSE(table.wait(1, {"n", "other"}));
  ASSERT_TRUE(table.set("n", "", wakeups).ok());
  ASSERT_TRUE(table.push("n", "", wakeups).ok());
  EXPECT_TRUE(table.erase("n"));
  ASSERT_TRUE(table.set("n", "", wakeups).ok());
  table.pop("n");
  EXPECT_TRUE(table.erase("n"));
  ASSERT_TRUE(table.set("other", "", wakeups).ok());
  EXPECT_THAT(wakeups, IsEmpty());
  ASSERT_TRUE(table.push("n", "", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
}

TEST(StoreTable, EachItemWakesOneWaitInTurnAndAValueWakesAll) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_FALSE(table.wait(id, {"q"}, /*in_turn=*/true));
  ASSERT_TRUE(table.push("q", "a", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
  ASSERT_TRUE(table.push("q", "b", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1, 2));
  ASSERT_TRUE(table.set("q", "", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1, 2, 3, 4));
}

TEST(StoreTable, ListOfKeysIsBoundedByTheMemoryThatItTakes) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  // Together with their names a few more than the limit.
  const std::size_t long_names = kMaxListBytes / kMaxKeyBytes;
  for (std::size_t i = 0; i < long_names; ++i) {
    std::string name = std::to_string(i);
    name.resize(kMaxKeyBytes - kListedKeyBytes, '_');
    ASSERT_TRUE(table.set(name, "", wakeups).ok());
  }
  EXPECT_EQ(table.list_keys("")->size(), long_names);
  ASSERT_TRUE(table.set("", "", wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.list_keys("").status()));
}

TEST(StoreTable, TurnThatEndsWithoutAPopGoesToTheNext) {
  StoreTable table;
  StoreTable::Wakeups wakeups;
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_FALSE(table.wait(id, {"q"}, /*in_turn=*/true));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(table.push("q", "item", wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1, 2));
  // The first one pops; the item that is left has the turn of the second one.
  EXPECT_NE(table.pop("q"), nullptr);
  EXPECT_THAT(table.end_turn(1), IsEmpty());
  EXPECT_THAT(table.end_turn(1), IsEmpty());
  EXPECT_THAT(ids(table.end_turn(2)), ElementsAre(3));
  EXPECT_NE(table.pop("q"), nullptr);
  EXPECT_THAT(table.end_turn(3), IsEmpty());
  EXPECT_EQ(table.waiters().num_turns(), 0);
  EXPECT_EQ(table.waiters().size(), 1);
}

TEST(StoreTable, QueuesTakeRoomAlsoWithEmptyItems) {
  StoreTable table(2 * kQueueItemBytes + 1);
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.push("q", "", wakeups).ok());
  ASSERT_TRUE(table.push("q", "", wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.push("q", "", wakeups)));
  EXPECT_TRUE(absl::IsResourceExhausted(table.set("k", "", wakeups)));
  table.pop("q");
  table.pop("q");
  // All room is free again, also that of the name.
  ASSERT_TRUE(table.set("k", std::string(2 * kQueueItemBytes, 'v'), wakeups).ok());
}

TEST(StoreTable, ManyKeysAreSetTogetherOrNotAtAll) {
  StoreTable table(8);
  StoreTable::Wakeups wakeups;
  const StoreTable::Entry entries[] = {{"a", "123"}, {"b", "1234"}};
  EXPECT_TRUE(absl::IsResourceExhausted(table.set_all(entries, wakeups)));
  EXPECT_EQ(table.num_keys(), 0);
  EXPECT_FALSE(table.wait(1, {"a", "b"}));
  const StoreTable::Entry smaller[] = {{"a", "123"}, {"b", "123"}};
  ASSERT_TRUE(table.set_all(smaller, wakeups).ok());
  EXPECT_THAT(ids(wakeups), ElementsAre(1));
  EXPECT_THAT(copies_of(*table.find_all({"b", "a"})), ElementsAre("123", "123"));
}

TEST(StoreTable, AppendIsBoundedByTheRoomAndByTheLimitOfAValue) {
  StoreTable table(10);
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.append("k", "12345", wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.append("k", "12345", wakeups)));
  ASSERT_TRUE(table.append("k", "6789", wakeups).ok());
  EXPECT_EQ(*table.find("k"), "123456789");
  StoreTable large;
  ASSERT_TRUE(large.set("k", std::string(kMaxValueBytes, 'v'), wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(large.append("k", "v", wakeups)));
}

TEST(StoreTable, LongerValueNeedsOnlyTheRoomOfTheDifference) {
  StoreTable table(10);
  StoreTable::Wakeups wakeups;
  ASSERT_TRUE(table.set("k", "12345", wakeups).ok());
  EXPECT_TRUE(table.set("k", "123456789", wakeups).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table.set("k", "1234567890", wakeups)));
}

}  // namespace
}  // namespace gradwire::store
