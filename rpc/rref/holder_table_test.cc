#include "gradwire/rpc/rref/holder_table.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

constexpr uint64_t kOwner = 1, kC = 3, kD = 4;
const Id kRref{7, 1};
const Id kFork{7, 2};
const Id kChild{7, 3};

HolderTable with_fork(bool confirmed) {
  HolderTable table;
  table.add({kRref, kFork, kOwner}, confirmed);
  return table;
}

TEST(HolderTable, ReleasedForkIsDeletedWhenConfirmed) {
  HolderTable table = with_fork(false);
  EXPECT_TRUE(table.release(kFork).empty());
  const auto deletes = table.confirm(kFork);
  ASSERT_EQ(deletes.size(), 1u);
  EXPECT_EQ(deletes[0].fork, kFork);
  EXPECT_EQ(deletes[0].owner, kOwner);
  EXPECT_EQ(table.forks(), 0u);
  EXPECT_TRUE(table.release(kFork).empty());
}

TEST(HolderTable, ChildKeepsItsReleasedParent) {
  HolderTable table = with_fork(true);
  table.add_child(kFork, kChild, kC);
  EXPECT_TRUE(table.release(kFork).empty());
  EXPECT_EQ(table.confirm_child(kChild, kC).size(), 1u);
  EXPECT_EQ(table.children(), 0u);
}

TEST(HolderTable, OnlyTheReceiverConfirmsAChild) {
  HolderTable table = with_fork(true);
  table.add_child(kFork, kChild, kC);
  (void)table.release(kFork);
  EXPECT_TRUE(table.confirm_child(kChild, kD).empty());
  EXPECT_EQ(table.children(), 1u);
}

TEST(HolderTable, DuplicateEventsChangeNothing) {
  HolderTable table = with_fork(true);
  table.add({kRref, kFork, kOwner}, false);
  EXPECT_EQ(table.stage(kFork), HolderTable::Stage::kConfirmed);
  table.add_child(kFork, kChild, kC);
  table.add_child(kFork, kChild, kC);
  (void)table.release(kFork);
  (void)table.release(kFork);
  EXPECT_EQ(table.confirm_child(kChild, kC).size(), 1u);
  EXPECT_TRUE(table.confirm_child(kChild, kC).empty());
  EXPECT_TRUE(table.confirm(kFork).empty());
}

TEST(HolderTable, LostReceiversChildrenStayUntilTheyAreReleased) {
  HolderTable table = with_fork(true);
  table.add_child(kFork, kChild, kC);
  (void)table.release(kFork);
  EXPECT_TRUE(table.lose_worker(kC).empty());
  EXPECT_EQ(table.stage(kFork), HolderTable::Stage::kConfirmedReleased);
  EXPECT_EQ(table.release_lost().size(), 1u);
  EXPECT_EQ(table.forks() + table.children(), 0u);
}

TEST(HolderTable, LostOwnersForksNeedNoDelete) {
  HolderTable table = with_fork(false);
  table.add_child(kFork, kChild, kC);
  (void)table.release(kFork);
  // One that another worker has shared.
  table.add({kRref, {kD, 5}, kOwner, kC}, false);
  EXPECT_EQ(table.unconfirmed(), 1u);
  const auto never = table.lose_worker(kOwner);
  ASSERT_EQ(never.size(), 2u);
  EXPECT_TRUE(never[0].fork == kFork || never[1].fork == kFork);
  EXPECT_EQ(table.forks() + table.children() + table.unconfirmed(), 0u);
  EXPECT_TRUE(table.confirm(kFork).empty());
}

TEST(HolderTable, ConfirmedForksOfALostOwnerGoUnannounced) {
  HolderTable table = with_fork(true);
  EXPECT_TRUE(table.lose_worker(kOwner).empty());
  EXPECT_EQ(table.stage(kFork), HolderTable::Stage::kAbsent);
}

TEST(HolderTable, OwnerThatIsAlsoTheReceiverGetsNoDelete) {
  HolderTable table = with_fork(true);
  table.add_child(kFork, kChild, kOwner);
  (void)table.release(kFork);
  EXPECT_TRUE(table.lose_worker(kOwner).empty());
  EXPECT_TRUE(table.release_lost().empty());
  EXPECT_EQ(table.forks() + table.children(), 0u);
}

TEST(HolderTable, SharerOfAnUnconfirmedForkIsKnown) {
  HolderTable table;
  table.add({kRref, kFork, kOwner, kC}, false);
  EXPECT_EQ(table.sharer_of_unconfirmed(kFork), kC);
  EXPECT_TRUE(table.has_unconfirmed_from({kC}));
  EXPECT_FALSE(table.has_unconfirmed_from({kD}));
  (void)table.confirm(kFork);
  EXPECT_FALSE(table.has_unconfirmed_from({kC}));
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
    for (std::size_t i = 0; i < forks.size(); ++i) table.add({kRref, {7, 10 + i}, kOwner}, false);
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
      count(table.confirm_child({7, child}, kC));
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
          table.add_child(id, {7, next_child++}, kC);
          break;
        default:
          if (!state.open_children.empty()) finish_child(state);
      }
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

}  // namespace
}  // namespace gradwire::rpc
