#include "rpc/rref/owner_table.h"

#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kA = 11, kB = 22;
const Id kRref{kA, 1};

TEST(OwnerTable, ValueGoesWithItsLastFork) {
  OwnerTable table;
  EXPECT_TRUE(table.add_fork(kRref, {kA, 2}, kA).empty());
  EXPECT_TRUE(table.add_fork(kRref, {kB, 1}, kB).empty());
  EXPECT_TRUE(table.delete_fork(kRref, {kA, 2}, kA).empty());
  EXPECT_EQ(table.delete_fork(kRref, {kB, 1}, kB), OwnerTable::Freed{kRref});
  EXPECT_EQ(table.size(), 0u);
}

TEST(OwnerTable, LocalHandleKeepsTheValue) {
  OwnerTable table;
  table.add_local(kRref);
  (void)table.add_fork(kRref, {kB, 1}, kB);
  EXPECT_TRUE(table.delete_fork(kRref, {kB, 1}, kB).empty());
  EXPECT_EQ(table.delete_local(kRref), OwnerTable::Freed{kRref});
  EXPECT_TRUE(table.delete_local(kRref).empty());
}

TEST(OwnerTable, DeleteBeforeItsAddFreesAtTheAdd) {
  OwnerTable table;
  EXPECT_TRUE(table.delete_fork(kRref, {kA, 2}, kA).empty());
  EXPECT_EQ(table.early_deletes(), 1u);
  EXPECT_EQ(table.add_fork(kRref, {kA, 2}, kA), OwnerTable::Freed{kRref});
  EXPECT_EQ(table.early_deletes(), 0u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(OwnerTable, DuplicatesChangeNothing) {
  OwnerTable table;
  (void)table.add_fork(kRref, {kA, 2}, kB);
  (void)table.add_fork(kRref, {kA, 2}, kB);
  EXPECT_EQ(table.delete_fork(kRref, {kA, 2}, kB).size(), 1u);
  EXPECT_TRUE(table.delete_fork(kRref, {kA, 2}, kB).empty());
  EXPECT_EQ(table.early_deletes(), 0u);  // A allocated the fork for B: its add cannot come after its delete.
}

TEST(OwnerTable, StrangerCannotDeleteAFork) {
  OwnerTable table;
  (void)table.add_fork(kRref, {kA, 2}, kA);
  EXPECT_TRUE(table.delete_fork(kRref, {kA, 2}, kB).empty());
  EXPECT_TRUE(table.has_fork(kRref, {kA, 2}));
}

TEST(OwnerTable, LostHoldersForksGoAndItsLateAddsAreIgnored) {
  OwnerTable table;
  (void)table.add_fork(kRref, {kA, 2}, kA);
  (void)table.add_fork({kA, 9}, {kA, 10}, kA);
  (void)table.add_fork({kA, 9}, {kB, 3}, kB);
  (void)table.delete_fork(kRref, {kA, 77}, kA);
  EXPECT_EQ(table.lose_holder(kA), OwnerTable::Freed{kRref});
  EXPECT_EQ(table.early_deletes(), 0u);
  EXPECT_EQ(table.add_fork({kA, 20}, {kA, 21}, kA), (OwnerTable::Freed{{kA, 20}}));
  EXPECT_EQ(table.size(), 1u);
}

TEST(OwnerTable, EarlyDeletesAreBounded) {
  OwnerTable table;
  for (uint64_t i = 0; i < OwnerTable::kMaxEarlyDeletes + 100; ++i)
    (void)table.delete_fork(kRref, {kA, i + 1}, kA);
  EXPECT_EQ(table.early_deletes(), OwnerTable::kMaxEarlyDeletes);
  // The oldest were forgotten.
  EXPECT_TRUE(table.add_fork({kA, 1}, {kA, 1}, kA).empty());
}

// Adds and deletes of each fork come in any order, any number of times, and holders get lost in between.
TEST(OwnerTable, RandomOrdersFreeEachValueOnceWhenNobodyRefersToIt) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    OwnerTable table;
    struct Fork {
      Id rref, fork;
      uint64_t holder;
      bool added = false, deleted = false;
    };
    std::vector<Fork> forks;
    for (int i = 0; i < 6; ++i) {
      const uint64_t holder = random() % 3 + 1;
      // Of the third holder's forks some were allocated by another: those are deleted only after their add.
      const uint64_t origin = holder == 3 ? 1 : holder;
      forks.push_back({{9, random() % 2 + 1}, {origin, static_cast<uint64_t>(i) + 1}, holder});
    }
    std::set<uint64_t> lost;
    std::map<Id, int> freed;
    auto count = [&](const OwnerTable::Freed& ids) {
      for (const Id& id : ids) {
        ++freed[id];
        for (const Fork& fork : forks) {
          if (fork.rref == id && fork.added && !fork.deleted && !lost.contains(fork.holder)) {
            FAIL() << "seed " << seed << ": freed while fork " << fork.fork.counter << " holds it";
          }
        }
      }
    };
    for (int step = 0; step < 40; ++step) {
      Fork& fork = forks[random() % forks.size()];
      switch (random() % 8) {
        case 0:
          if (random() % 4 == 0) {
            lost.insert(fork.holder);
            count(table.lose_holder(fork.holder));
          }
          break;
        case 1:
        case 2:
        case 3:
          if (fork.added && fork.deleted) break;  // No add follows its own fork's delete twice.
          fork.added = true;
          count(table.add_fork(fork.rref, fork.fork, fork.holder));
          break;
        default:
          if (!fork.added && fork.fork.origin != fork.holder) break;
          fork.deleted = true;
          count(table.delete_fork(fork.rref, fork.fork, fork.holder));
      }
      for (const Fork& f : forks) {
        const bool refers = f.added && !f.deleted && !lost.contains(f.holder);
        ASSERT_EQ(table.has_fork(f.rref, f.fork), refers) << "seed " << seed;
      }
    }
    for (Fork& fork : forks) {
      if (!fork.added) {
        fork.added = true;
        count(table.add_fork(fork.rref, fork.fork, fork.holder));
      }
      fork.deleted = true;
      count(table.delete_fork(fork.rref, fork.fork, fork.holder));
    }
    EXPECT_EQ(table.size(), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gradwire::rpc
