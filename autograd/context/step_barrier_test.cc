#include "gradwire/autograd/context/step_barrier.h"

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::autograd {
namespace {

using Tickets = StepBarrier::Tickets;
constexpr rpc::Id kA{1, 1}, kB{1, 2}, kC{1, 3}, kD{1, 4};

StepBarrier::Parameters parameters(std::vector<uintptr_t> numbers) {
  return std::make_shared<const std::vector<uintptr_t>>(std::move(numbers));
}
const StepBarrier::Parameters kWeights = parameters({3, 5});

TEST(StepBarrier, UnarmedLetsEverythingPass) {
  StepBarrier barrier;
  EXPECT_EQ(barrier.request(1, kA, false), Tickets{1});
  EXPECT_EQ(barrier.request(2, kB, false), Tickets{2});
  EXPECT_EQ(barrier.forwarding(), 2u);
  barrier.left(kA);
  EXPECT_EQ(barrier.forwarding(), 1u);
}

TEST(StepBarrier, StepWaitsForAnotherContextsBackward) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.request(2, kB, false);
  EXPECT_EQ(barrier.left(kA), Tickets{});
  EXPECT_EQ(barrier.step(3, kA, kWeights), Tickets{});
  EXPECT_EQ(barrier.left(kB), Tickets{3});
}

TEST(StepBarrier, OwnForwardDoesNotStopAStep) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  EXPECT_EQ(barrier.step(2, kA, kWeights), Tickets{2});
}

TEST(StepBarrier, ContextsThatCallAgainBeforeTheirStepsDoNotWaitForEachOther) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.request(2, kB, false);
  EXPECT_EQ(barrier.step(3, kA, kWeights), Tickets{});
  EXPECT_EQ(barrier.step(4, kB, kWeights), Tickets{3});
  EXPECT_EQ(barrier.step_ended(kWeights), Tickets{4});
}

TEST(StepBarrier, LaterContextWaitsForTheStepAndEarlierOnePasses) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  EXPECT_EQ(barrier.step(2, kB, kWeights), Tickets{});
  EXPECT_EQ(barrier.request(3, kC, false), Tickets{});
  EXPECT_EQ(barrier.request(4, kA, false), Tickets{4});
  EXPECT_EQ(barrier.left(kA), Tickets{2});
  EXPECT_EQ(barrier.step_ended(kWeights), Tickets{3});
}

TEST(StepBarrier, ContextAdmittedElsewherePasses) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.step(2, kB, kWeights);
  EXPECT_EQ(barrier.request(3, kC, true), Tickets{3});
  barrier.left(kA);
  EXPECT_EQ(barrier.left(kC), Tickets{2});
}

TEST(StepBarrier, WaitingRequestPassesWhenItsContextIsAdmittedElsewhere) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.step(2, kB, kWeights);
  EXPECT_EQ(barrier.request(3, kC, false), Tickets{});
  EXPECT_EQ(barrier.admitted(kC), Tickets{3});
}

TEST(StepBarrier, NothingPassesWhileAStepRuns) {
  StepBarrier barrier;
  barrier.arm();
  EXPECT_EQ(barrier.step(1, kA, kWeights), Tickets{1});
  EXPECT_EQ(barrier.request(2, kB, true), Tickets{});
  EXPECT_EQ(barrier.step(3, kC, kWeights), Tickets{});
  EXPECT_EQ(barrier.step_ended(kWeights), Tickets{2});
  EXPECT_EQ(barrier.left(kB), Tickets{3});
}

TEST(StepBarrier, StepThatGivesUpLetsTheOthersPass) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.step(2, kB, kWeights);
  barrier.request(3, kC, false);
  Tickets passed;
  EXPECT_TRUE(barrier.give_up(2, passed));
  EXPECT_EQ(passed, Tickets{3});
  EXPECT_FALSE(barrier.give_up(2, passed));
}

TEST(StepBarrier, DisarmingLetsEverybodyPass) {
  StepBarrier barrier;
  barrier.arm();
  barrier.request(1, kA, false);
  barrier.step(2, kB, kWeights);
  barrier.request(3, kC, false);
  EXPECT_EQ(barrier.disarm(), (Tickets{2, 3}));
}

TEST(StepBarrier, StepsOnDifferentParametersOverlap) {
  StepBarrier barrier;
  barrier.arm();
  const StepBarrier::Parameters others = parameters({1, 4, 6});
  EXPECT_EQ(barrier.step(1, kA, kWeights), Tickets{1});
  EXPECT_EQ(barrier.step(2, kB, others), Tickets{2});
  EXPECT_EQ(barrier.step(3, kC, parameters({2, 5})), Tickets{});
  // While one of them runs, no request passes.
  EXPECT_EQ(barrier.step_ended(others), Tickets{});
  EXPECT_EQ(barrier.request(4, kD, true), Tickets{});
  EXPECT_EQ(barrier.step_ended(kWeights), Tickets{3});
}

TEST(StepBarrier, StepsThatOverlapLetARequestPassThatCameBetweenThem) {
  StepBarrier barrier;
  barrier.arm();
  EXPECT_EQ(barrier.step(1, kA, kWeights), Tickets{1});
  EXPECT_EQ(barrier.request(2, kB, false), Tickets{});
  EXPECT_EQ(barrier.step(3, kC, parameters({1})), Tickets{});
  EXPECT_EQ(barrier.step_ended(kWeights), Tickets{2});
  EXPECT_EQ(barrier.left(kB), Tickets{3});
}

// Several trainers use the parameters of the same two owners in random order. Every forward and every step
// eventually runs, and no step runs between another trainer's forward and backward.
TEST(StepBarrier, TwoOwnersNeverWaitInACircle) {
  constexpr int kTrainers = 4, kOwners = 2, kRounds = 5;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    StepBarrier barriers[kOwners];
    for (StepBarrier& barrier : barriers) barrier.arm();
    struct Trainer {
      int round = 0;
      int stage = 0;  // Requests to the owners, the backward, steps at all owners.
      bool waiting = false;
      bool admitted = false;
      int first = 0;
      int steps_left = 0;
    };
    std::vector<Trainer> trainers(kTrainers);
    std::vector<uint64_t> forwarding[kOwners];
    auto context = [&](int t) {
      return rpc::Id{static_cast<uint64_t>(t + 1), static_cast<uint64_t>(trainers[t].round + 1)};
    };
    // A ticket: trainer * 16 + owner * 2 + is_step.
    std::vector<uint64_t> running;  // Steps that passed.
    auto pass = [&](const Tickets& tickets) {
      for (uint64_t ticket : tickets) {
        const int t = static_cast<int>(ticket / 16), owner = static_cast<int>(ticket / 2 % 8);
        if (ticket % 2 == 0) {
          trainers[t].waiting = false;
          trainers[t].admitted = true;
          ++trainers[t].stage;
          forwarding[owner].push_back(t);
        } else {
          for (uint64_t other : forwarding[owner])
            ASSERT_EQ(other, static_cast<uint64_t>(t)) << "seed " << seed;
          running.push_back(ticket);
        }
      }
    };
    int finished = 0;
    for (int events = 0; finished < kTrainers; ++events) {
      ASSERT_LT(events, 100000) << "no progress, seed " << seed;
      const int t = static_cast<int>(random() % (kTrainers + 1));
      if (t == kTrainers) {
        if (running.empty()) continue;
        const std::size_t which = random() % running.size();
        const uint64_t ticket = running[which];
        running.erase(running.begin() + which);
        Trainer& trainer = trainers[ticket / 16];
        if (--trainer.steps_left == 0) {
          const rpc::Id old = context(static_cast<int>(ticket / 16));
          trainer = Trainer{.round = trainer.round + 1, .first = static_cast<int>(random() % kOwners)};
          if (trainer.round == kRounds) ++finished;
          for (StepBarrier& barrier : barriers) pass(barrier.left(old));
        }
        pass(barriers[ticket / 2 % 8].step_ended(kWeights));
        continue;
      }
      Trainer& trainer = trainers[t];
      if (trainer.round == kRounds || trainer.waiting || trainer.stage > kOwners) continue;
      if (trainer.stage < kOwners) {
        const int owner = (trainer.first + trainer.stage) % kOwners;
        trainer.waiting = true;
        pass(barriers[owner].request(t * 16 + owner * 2, context(t), trainer.admitted));
      } else {
        trainer.stage = kOwners + 1;
        trainer.steps_left = kOwners;
        for (int owner = 0; owner < kOwners; ++owner) {
          std::erase(forwarding[owner], static_cast<uint64_t>(t));
          pass(barriers[owner].left(context(t)));
        }
        for (int owner = 0; owner < kOwners; ++owner)
          pass(barriers[owner].step(t * 16 + owner * 2 + 1, context(t), kWeights));
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::autograd
