#include "gradwire/rpc/rref/owner_table.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kHolderA = 11, kHolderB = 22;
const Id kOwnedRref{kHolderA, 1};

TEST(OwnerTable, ValueGoesWithItsLastFork) {
  OwnerTable table;
  EXPECT_TRUE(table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA).empty());
  EXPECT_TRUE(table.add_fork(kOwnedRref, {kHolderB, 1}, kHolderB).empty());
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, true).empty());
  EXPECT_EQ(table.delete_fork(kOwnedRref, {kHolderB, 1}, kHolderB, true), OwnerTable::Freed{kOwnedRref});
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.remembered_deletes(), 0u);
}

TEST(OwnerTable, ForksAreCountedForEachHolder) {
  OwnerTable table;
  const Id other{kHolderA, 9};
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA);
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA);
  (void)table.add_fork(other, {kHolderA, 3}, kHolderA);
  (void)table.add_fork(kOwnedRref, {kHolderB, 1}, kHolderB);
  // Deleted before.
  (void)table.delete_fork(other, {kHolderB, 2}, kHolderB, false);
  (void)table.add_fork(other, {kHolderB, 2}, kHolderB);
  EXPECT_EQ(table.count_forks_of(kHolderA), 2u);
  EXPECT_EQ(table.count_forks_of(kHolderB), 1u);
  // Only its holder deletes a fork, and once.
  (void)table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderB, true);
  EXPECT_EQ(table.count_forks_of(kHolderA), 2u);
  (void)table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, true);
  (void)table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, true);
  EXPECT_EQ(table.count_forks_of(kHolderA), 1u);
  table.lose_holder(kHolderA);
  (void)table.add_fork(kOwnedRref, {kHolderA, 7}, kHolderA);
  EXPECT_EQ(table.count_forks_of(kHolderA), 1u);
  (void)table.release_lost();
  EXPECT_EQ(table.count_forks_of(kHolderA), 0u);
  EXPECT_EQ(table.count_forks_of(kHolderB), 1u);
}

TEST(OwnerTable, LocalHandleKeepsTheValue) {
  OwnerTable table;
  table.add_local(kOwnedRref);
  (void)table.add_fork(kOwnedRref, {kHolderB, 1}, kHolderB);
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderB, 1}, kHolderB, true).empty());
  EXPECT_EQ(table.delete_local(kOwnedRref), OwnerTable::Freed{kOwnedRref});
  EXPECT_TRUE(table.delete_local(kOwnedRref).empty());
}

TEST(OwnerTable, DeleteBeforeItsAddFreesAtTheAdd) {
  OwnerTable table;
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, false).empty());
  EXPECT_TRUE(table.deleted({kHolderA, 2}, kHolderA));
  EXPECT_EQ(table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA), OwnerTable::Freed{kOwnedRref});
  // The add may come twice.
  EXPECT_EQ(table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA), OwnerTable::Freed{kOwnedRref});
  EXPECT_EQ(table.size(), 0u);
}

TEST(OwnerTable, SettledHoldersDeletesAreForgotten) {
  OwnerTable table;
  (void)table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, false);
  (void)table.delete_fork(kOwnedRref, {kHolderB, 2}, kHolderB, false);
  EXPECT_EQ(table.remembered_deletes(), 2u);
  table.settle(kHolderA);
  EXPECT_FALSE(table.remembers(kHolderA));
  EXPECT_TRUE(table.remembers(kHolderB));
}

TEST(OwnerTable, DuplicatesChangeNothing) {
  OwnerTable table;
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderB);
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderB);
  EXPECT_EQ(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderB, false).size(), 1u);
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderB, false).empty());
  EXPECT_EQ(table.remembered_deletes(), 1u);
}

TEST(OwnerTable, StrangerCannotDeleteAFork) {
  OwnerTable table;
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA);
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderB, false).empty());
  EXPECT_TRUE(table.has_fork(kOwnedRref, {kHolderA, 2}));
}

TEST(OwnerTable, LostHoldersForksStayUntilTheyAreReleased) {
  OwnerTable table;
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA);
  (void)table.add_fork({kHolderA, 9}, {kHolderA, 10}, kHolderA);
  (void)table.add_fork({kHolderA, 9}, {kHolderB, 3}, kHolderB);
  (void)table.delete_fork(kOwnedRref, {kHolderA, 77}, kHolderA, false);
  table.lose_holder(kHolderA);
  EXPECT_EQ(table.remembered_deletes(), 0u);
  EXPECT_TRUE(table.has_forks_of(kHolderA));
  EXPECT_TRUE(table.delete_fork(kOwnedRref, {kHolderA, 2}, kHolderA, false).empty());
  EXPECT_TRUE(table.has_fork(kOwnedRref, {kHolderA, 2}));
  EXPECT_EQ(table.unreleased(), 1u);
  EXPECT_EQ(table.release_lost(), OwnerTable::Freed{kOwnedRref});
  EXPECT_EQ(table.unreleased(), 0u);
  EXPECT_FALSE(table.has_forks_of(kHolderA));
  EXPECT_TRUE(table.contains({kHolderA, 9}));
}

TEST(OwnerTable, LostHoldersLateAddNamesNoNewValue) {
  OwnerTable table;
  table.lose_holder(kHolderA);
  EXPECT_TRUE(table.add_fork({kHolderA, 20}, {kHolderA, 21}, kHolderA).empty());
  EXPECT_EQ(table.size(), 0u);
}

TEST(OwnerTable, RememberedDeletesAreBounded) {
  OwnerTable table;
  for (uint64_t i = 0; i < OwnerTable::kMaxRemembered + 100; ++i)
    (void)table.delete_fork(kOwnedRref, {kHolderA, i + 1}, kHolderA, false);
  EXPECT_EQ(table.remembered_deletes(), OwnerTable::kMaxRemembered);
  // The oldest were forgotten.
  EXPECT_TRUE(table.add_fork({kHolderA, 1}, {kHolderA, 1}, kHolderA).empty());
}

TEST(OwnerTable, ForksOfAHolderAreThoseThatOneNamed) {
  OwnerTable table;
  (void)table.add_fork(kOwnedRref, {kHolderB, 1}, kHolderA);
  (void)table.add_fork(kOwnedRref, {kHolderA, 2}, kHolderA);
  (void)table.add_fork(kOwnedRref, {kHolderB, 3}, kHolderB);
  const std::vector<OwnerTable::Fork> forks = table.forks_of(kHolderA, kHolderB);
  ASSERT_EQ(forks.size(), 1u);
  EXPECT_EQ(forks[0].fork, (Id{kHolderB, 1}));
}

// Adds and deletes of each fork come in any order, any number of times, and holders get lost in between.
TEST(OwnerTable, RandomOrdersFreeAValueOnlyWhenNobodyRefersToIt) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    OwnerTable table;
    struct Fork {
      Id rref, fork;
      uint64_t holder;
      bool added = false, deleted = false;
    };
    std::vector<Fork> forks;
    for (uint64_t i = 1; i <= 6; ++i) {
      const uint64_t holder = random() % 3 + 1;
      forks.push_back({{9, random() % 2 + 1}, {holder, i}, holder});
    }
    std::set<uint64_t> lost, released;
    auto refers = [&](const Fork& fork) {
      return fork.added && !fork.deleted && !released.contains(fork.holder);
    };
    auto check = [&](const OwnerTable::Freed& ids) {
      for (const Id& id : ids) {
        for (const Fork& fork : forks) {
          EXPECT_FALSE(fork.rref == id && refers(fork)) << "seed " << seed << ", fork " << fork.fork.counter;
        }
      }
    };
    for (int step = 0; step < 40; ++step) {
      Fork& fork = forks[random() % forks.size()];
      switch (random() % 10) {
        case 0:
          if (random() % 4 != 0) break;
          lost.insert(fork.holder);
          table.lose_holder(fork.holder);
          break;
        case 1:
          released = lost;
          check(table.release_lost());
          break;
        case 2:
        case 3:
        case 4:
          if (!lost.contains(fork.holder)) fork.added = true;
          check(table.add_fork(fork.rref, fork.fork, fork.holder));
          break;
        default:
          if (!lost.contains(fork.holder)) fork.deleted = true;
          check(table.delete_fork(fork.rref, fork.fork, fork.holder, false));
      }
      std::map<uint64_t, std::size_t> counts;
      for (const Fork& f : forks) {
        ASSERT_EQ(table.has_fork(f.rref, f.fork), refers(f)) << "seed " << seed;
        if (refers(f)) ++counts[f.holder];
      }
      for (uint64_t holder = 1; holder <= 3; ++holder)
        ASSERT_EQ(table.count_forks_of(holder), counts[holder]) << "seed " << seed;
      ASSERT_TRUE(table.consistent()) << "seed " << seed;
    }
    for (Fork& fork : forks) {
      if (!lost.contains(fork.holder)) fork.deleted = true;
      check(table.delete_fork(fork.rref, fork.fork, fork.holder, false));
    }
    released = lost;
    check(table.release_lost());
    EXPECT_EQ(table.size(), 0u) << "seed " << seed;
    for (uint64_t holder = 1; holder <= 3; ++holder) table.settle(holder);
    EXPECT_EQ(table.remembered_deletes(), 0u);
  }
}

TEST(OwnerTable, LossOfAHolderExaminesItsForksOnly) {
  constexpr uint64_t kForks = 100'000;
  OwnerTable table;
  for (uint64_t i = 1; i <= kForks; ++i) table.add_fork({9, i}, {kHolderA, i}, kHolderA);
  for (uint64_t i = 1; i <= 10; ++i) table.add_fork({9, i}, {kHolderB, i}, kHolderB);
  EXPECT_TRUE(table.has_forks_of(kHolderB));
  EXPECT_EQ(table.forks_of(kHolderB, kHolderB).size(), 10u);
  EXPECT_EQ(table.forks_of(kHolderB, kHolderA).size(), 0u);
  table.lose_holder(kHolderB);
  EXPECT_TRUE(table.release_lost().empty());
  EXPECT_EQ(table.examined(), 30u);
  EXPECT_FALSE(table.has_forks_of(kHolderB));
  EXPECT_TRUE(table.consistent());
  EXPECT_EQ(table.size(), kForks);
}

// Only a hostile holder uses an id twice.
TEST(OwnerTable, OneForkIdOfTwoRRefsIsTwoForks) {
  OwnerTable table;
  table.add_fork({9, 1}, {kHolderA, 1}, kHolderA);
  table.add_fork({9, 2}, {kHolderA, 1}, kHolderA);
  EXPECT_EQ(table.count_forks_of(kHolderA), 2u);
  EXPECT_EQ(table.delete_fork({9, 1}, {kHolderA, 1}, kHolderA, true).size(), 1u);
  EXPECT_TRUE(table.consistent());
  table.lose_holder(kHolderA);
  EXPECT_EQ(table.release_lost().size(), 1u);
  EXPECT_EQ(table.size(), 0u);
  EXPECT_TRUE(table.consistent());
}

}  // namespace
}  // namespace gradwire::rpc
