#include "gradwire/rpc/rref/holder_table.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kOwnerOfRref = 1, kWorkerC = 3, kWorkerD = 4;
const Id kHeldRref{7, 1};
const Id kHeldFork{7, 2};
const Id kHeldChild{7, 3};

HolderTable with_fork(bool confirmed) {
  HolderTable table;
  table.add({kHeldRref, kHeldFork, kOwnerOfRref}, confirmed);
  return table;
}

TEST(HolderTable, ReleasedForkIsDeletedWhenConfirmed) {
  HolderTable table = with_fork(false);
  EXPECT_TRUE(table.release(kHeldFork).empty());
  const auto deletes = table.confirm(kHeldFork);
  ASSERT_EQ(deletes.size(), 1u);
  EXPECT_EQ(deletes[0].fork, kHeldFork);
  EXPECT_EQ(deletes[0].owner, kOwnerOfRref);
  EXPECT_EQ(table.forks(), 0u);
  EXPECT_TRUE(table.release(kHeldFork).empty());
}

TEST(HolderTable, ChildKeepsItsReleasedParent) {
  HolderTable table = with_fork(true);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  EXPECT_TRUE(table.release(kHeldFork).empty());
  EXPECT_EQ(table.confirm_child(kHeldChild, kWorkerC).size(), 1u);
  EXPECT_EQ(table.children(), 0u);
}

TEST(HolderTable, OnlyTheReceiverConfirmsAChild) {
  HolderTable table = with_fork(true);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  (void)table.release(kHeldFork);
  EXPECT_TRUE(table.confirm_child(kHeldChild, kWorkerD).empty());
  EXPECT_EQ(table.children(), 1u);
}

TEST(HolderTable, DuplicateEventsChangeNothing) {
  HolderTable table = with_fork(true);
  table.add({kHeldRref, kHeldFork, kOwnerOfRref}, false);
  EXPECT_EQ(table.stage(kHeldFork), HolderTable::Stage::kConfirmed);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  (void)table.release(kHeldFork);
  (void)table.release(kHeldFork);
  EXPECT_EQ(table.confirm_child(kHeldChild, kWorkerC).size(), 1u);
  EXPECT_TRUE(table.confirm_child(kHeldChild, kWorkerC).empty());
  EXPECT_TRUE(table.confirm(kHeldFork).empty());
}

TEST(HolderTable, LostReceiversChildrenStayUntilTheyAreReleased) {
  HolderTable table = with_fork(true);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  (void)table.release(kHeldFork);
  EXPECT_TRUE(table.lose_worker(kWorkerC).empty());
  EXPECT_EQ(table.stage(kHeldFork), HolderTable::Stage::kConfirmedReleased);
  EXPECT_EQ(table.release_lost().size(), 1u);
  EXPECT_EQ(table.forks() + table.children(), 0u);
}

TEST(HolderTable, LostOwnersForksNeedNoDelete) {
  HolderTable table = with_fork(false);
  table.add_child(kHeldFork, kHeldChild, kWorkerC);
  (void)table.release(kHeldFork);
  // One that another worker has shared.
  table.add({kHeldRref, {kWorkerD, 5}, kOwnerOfRref, kWorkerC}, false);
  EXPECT_EQ(table.unconfirmed(), 1u);
  const auto never = table.lose_worker(kOwnerOfRref);
  ASSERT_EQ(never.size(), 2u);
  EXPECT_TRUE(never[0].fork == kHeldFork || never[1].fork == kHeldFork);
  EXPECT_EQ(table.forks() + table.children() + table.unconfirmed(), 0u);
  EXPECT_TRUE(table.confirm(kHeldFork).empty());
}

TEST(HolderTable, ConfirmedForksOfALostOwnerGoUnannounced) {
  HolderTable table = with_fork(true);
  EXPECT_TRUE(table.lose_worker(kOwnerOfRref).empty());
  EXPECT_EQ(table.stage(kHeldFork), HolderTable::Stage::kAbsent);
}

TEST(HolderTable, OwnerThatIsAlsoTheReceiverGetsNoDelete) {
  HolderTable table = with_fork(true);
  table.add_child(kHeldFork, kHeldChild, kOwnerOfRref);
  (void)table.release(kHeldFork);
  EXPECT_TRUE(table.lose_worker(kOwnerOfRref).empty());
  EXPECT_TRUE(table.release_lost().empty());
  EXPECT_EQ(table.forks() + table.children(), 0u);
}

TEST(HolderTable, SharerOfAnUnconfirmedForkIsKnown) {
  HolderTable table;
  table.add({kHeldRref, kHeldFork, kOwnerOfRref, kWorkerC}, false);
  EXPECT_EQ(table.sharer_of_unconfirmed(kHeldFork), kWorkerC);
  EXPECT_TRUE(table.has_unconfirmed_from({kWorkerC}));
  EXPECT_FALSE(table.has_unconfirmed_from({kWorkerD}));
  (void)table.confirm(kHeldFork);
  EXPECT_FALSE(table.has_unconfirmed_from({kWorkerC}));
  EXPECT_EQ(table.unconfirmed(), 0u);
}

TEST(HolderTable, RandomOrdersDeleteEachForkExactlyOnce) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    HolderTable table;
    struct State {
      bool confirmed = false, released = false;
      int deletes = 0;
      std::set<uint64_t> open_children;
    };
    std::vector<State> forks(3);
    for (std::size_t i = 0; i < forks.size(); ++i) table.add({kHeldRref, {7, 10 + i}, kOwnerOfRref}, false);
    auto count = [&](const HolderTable::Deletes& deletes) {
      for (const auto& fork : deletes) {
        State& state = forks[fork.fork.counter - 10];
        ++state.deletes;
        EXPECT_TRUE(state.confirmed && state.released && state.open_children.empty()) << "seed " << seed;
      }
    };
    uint64_t next_child = 100;
    auto finish_child = [&](State& state) {
      const uint64_t child = *state.open_children.begin();
      state.open_children.erase(state.open_children.begin());
      count(table.confirm_child({7, child}, kWorkerC));
    };
    for (int step = 0; step < 30; ++step) {
      const std::size_t i = random() % forks.size();
      State& state = forks[i];
      const Id id{7, 10 + i};
      switch (random() % 5) {
        case 0:
          state.confirmed = true;
          count(table.confirm(id));
          break;
        case 1:
          if (random() % 3 == 0) {
            state.released = true;
            count(table.release(id));
          }
          break;
        case 2:
          if (state.released) break;
          state.open_children.insert(next_child);
          table.add_child(id, {7, next_child++}, kWorkerC);
          break;
        default:
          if (!state.open_children.empty()) finish_child(state);
      }
      ASSERT_TRUE(table.consistent()) << "seed " << seed;
    }
    for (std::size_t i = 0; i < forks.size(); ++i) {
      forks[i].released = true;
      count(table.release({7, 10 + i}));
      while (!forks[i].open_children.empty()) finish_child(forks[i]);
      forks[i].confirmed = true;
      count(table.confirm({7, 10 + i}));
      EXPECT_EQ(forks[i].deletes, 1) << "seed " << seed;
    }
    EXPECT_EQ(table.forks() + table.children(), 0u);
  }
}

// Forks of two owners, from two sharers, with children at two receivers.
TEST(HolderTable, LossOfAWorkerExaminesWhatBelongsToItOnly) {
  constexpr uint64_t kForks = 50'000;
  HolderTable table;
  for (uint64_t i = 1; i <= kForks; ++i) {
    // One of 5,000 belongs to worker D.
    const uint64_t owner = i % 5'000 == 0 ? kWorkerD : kOwnerOfRref;
    table.add({{owner, i}, {kWorkerC, i}, owner, kWorkerC}, /*confirmed=*/i % 2 == 0);
    table.add_child({kWorkerC, i}, {7, i}, i % 5'000 == 1 ? kWorkerD : kWorkerC);
  }
  EXPECT_TRUE(table.consistent());
  EXPECT_EQ(table.forks_of(kWorkerD).size(), 10u);
  EXPECT_EQ(table.children_of(kWorkerD).size(), 10u);
  EXPECT_TRUE(table.has_unconfirmed_from({kWorkerC}));
  EXPECT_EQ(table.examined(), 20u);
  // Ten forks with a child each, all of them confirmed. Ten other forks have a child at worker D.
  EXPECT_TRUE(table.lose_worker(kWorkerD).empty());
  EXPECT_EQ(table.examined(), 40u);
  EXPECT_TRUE(table.release_lost().empty());
  EXPECT_EQ(table.examined(), 50u);
  EXPECT_EQ(table.forks(), kForks - 10);
  EXPECT_EQ(table.children(), kForks - 20);
  EXPECT_TRUE(table.consistent());
}

}  // namespace
}  // namespace gradwire::rpc
