#include "gradwire/store/memory/store_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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
  EXPECT_EQ(table.num_waiters(), 0);
  EXPECT_EQ(table.num_awaited_keys(), 0);
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
  EXPECT_EQ(table.num_awaited_keys(), 0);
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

}  // namespace
}  // namespace gradwire::store
