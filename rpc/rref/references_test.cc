#include "gradwire/rpc/rref/references.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using Actions = References::Actions;
using Answer = ReferenceMessage::Answer;
using Kind = ReferenceMessage::Kind;
using Received = References::Received;
using Shared = References::Shared;

constexpr uint64_t kOwner = 1, kA = 2, kB = 3, kC = 4;
const Id kRref{kOwner, 1};
const Id kFork{kA, 1};
const Id kChild{kA, 2};

References worker(uint64_t self) {
  References references(self);
  for (uint64_t member : {kOwner, kA, kB, kC}) references.join(member);
  return references;
}

// A worker that holds kFork, confirmed by the owner, which had passed it on.
References holder(uint64_t self) {
  References references = worker(self);
  Actions actions;
  EXPECT_EQ(references.receive({kRref, kOwner, kFork, true}, kOwner, actions), Received::kConfirmed);
  return references;
}

// The only message of that kind.
ReferenceMessage sent(const Actions& actions, Kind kind) {
  EXPECT_EQ(std::count_if(actions.send.begin(), actions.send.end(),
                          [kind](const auto& m) { return m.kind == kind; }),
            1);
  auto found = std::find_if(actions.send.begin(), actions.send.end(),
                            [kind](const auto& m) { return m.kind == kind; });
  return found == actions.send.end() ? ReferenceMessage() : *found;
}

TEST(References, SharedForkIsConfirmedToItsSharerOnceTheOwnerHasIt) {
  References b = worker(kB);
  Actions actions;
  EXPECT_EQ(b.receive({kRref, kOwner, kChild, false}, kA, actions), Received::kUnconfirmed);
  const ReferenceMessage add = sent(actions, Kind::kAdd);
  EXPECT_EQ(add.to, kOwner);
  Actions answered;
  b.on_answer(add, Answer::kDone, answered);
  EXPECT_EQ(answered.confirmed, std::vector<Id>{kChild});
  EXPECT_EQ(sent(answered, Kind::kConfirm).to, kA);
  EXPECT_EQ(b.peers().unacknowledged(kA).size(), 1u);
  EXPECT_TRUE(b.peers().unacknowledged(kOwner).empty());
}

TEST(References, SharerKeepsItsForkUntilTheChildIsConfirmed) {
  References a = holder(kA);
  EXPECT_EQ(a.share(kRref, kFork, kChild, kB), Shared::kUnregistered);
  Actions actions;
  a.release(kRref, kFork, actions);
  EXPECT_TRUE(actions.send.empty());
  EXPECT_EQ(
      a.on_message(kB, {.kind = Kind::kConfirm, .to = kA, .rref = kRref, .fork = kChild}, true, actions),
      Answer::kDone);
  EXPECT_EQ(sent(actions, Kind::kDelete).fork, kFork);
}

TEST(References, MessagesAreRepeatedUntilAnsweredOrTheReceiverIsLost) {
  References a = holder(kA);
  Actions actions;
  a.release(kRref, kFork, actions);
  EXPECT_EQ(a.peers().unacknowledged(kOwner).size(), 1u);
  EXPECT_EQ(a.peers().unacknowledged(kOwner).size(), 1u);
  Actions lost;
  a.lose(kOwner, lost);
  EXPECT_EQ(a.peers().unacknowledged(), 0u);
}

TEST(References, ReferenceThatNeverCameIsRefusedAfterwards) {
  References b = worker(kB);
  Actions actions;
  const ReferenceMessage revoke{.kind = Kind::kRevoke, .to = kB, .rref = kRref, .fork = kChild};
  EXPECT_EQ(b.on_message(kA, revoke, false, actions), Answer::kNever);
  EXPECT_TRUE(b.revocations().is_revoked(kA, kChild));
  EXPECT_EQ(b.receive({kRref, kOwner, kChild, false}, kA, actions), Received::kRefused);
  b.settle(kA);
  EXPECT_EQ(b.revocations().revoked(), 0u);
}

TEST(References, ReferenceThatCameSurvivesTheQuestionForIt) {
  References b = worker(kB);
  Actions actions;
  (void)b.receive({kRref, kOwner, kChild, false}, kA, actions);
  EXPECT_EQ(
      b.on_message(kA, {.kind = Kind::kRevoke, .to = kB, .rref = kRref, .fork = kChild}, false, actions),
      Answer::kReceived);
}

TEST(References, OwnerTakesBackWhatTheReceiverNeverGot) {
  References owner = worker(kOwner);
  owner.own(kRref);
  EXPECT_EQ(owner.share(kRref, {}, {kOwner, 2}, kB), Shared::kRegistered);
  Actions actions;
  owner.release(kRref, {}, actions);
  EXPECT_TRUE(actions.freed.empty());
  // The message has not been sent yet: it will be sent on the new connection.
  owner.link_restored(kB, actions);
  EXPECT_TRUE(actions.send.empty());
  owner.sent({kOwner, 2});
  owner.link_restored(kB, actions);
  owner.on_answer(sent(actions, Kind::kRevoke), Answer::kNever, actions);
  EXPECT_EQ(actions.freed, std::vector<Id>{kRref});
}

TEST(References, MessageThatLeftOnAConnectionThatHadEndedIsAskedAbout) {
  References a = holder(kA);
  EXPECT_EQ(a.share(kRref, kFork, kChild, kB), Shared::kUnregistered);
  Actions actions;
  a.link_restored(kB, actions);
  EXPECT_TRUE(actions.send.empty());
  a.sent(kChild);
  a.revoke(kRref, kChild, kB, actions);
  EXPECT_EQ(sent(actions, Kind::kRevoke).fork, kChild);
  a.on_answer(sent(actions, Kind::kRevoke), Answer::kNever, actions);
  EXPECT_EQ(a.holder().children(), 0u);
  Actions nothing;
  a.revoke(kRref, kChild, kB, nothing);
  EXPECT_TRUE(nothing.send.empty());
}

TEST(References, AgreementMayComeBeforeTheLoss) {
  References owner = worker(kOwner);
  owner.own(kRref);
  EXPECT_EQ(owner.share(kRref, {}, {kOwner, 2}, kB), Shared::kRegistered);
  Actions actions;
  owner.release(kRref, {}, actions);
  owner.fence(kB, actions);
  EXPECT_TRUE(actions.send.empty());
  owner.lose(kB, actions);
  const std::vector<ReferenceMessage> questions = actions.send;
  EXPECT_EQ(questions.size(), 2u);
  for (const ReferenceMessage& question : questions) {
    EXPECT_TRUE(actions.freed.empty());
    owner.on_answer(question, Answer::kDone, actions);
  }
  EXPECT_EQ(actions.freed, std::vector<Id>{kRref});
}

TEST(References, RegisteredForkOfAnUnknownOwnerIsGivenBack) {
  // The receiver has not read yet in the log that the sender joined.
  References b = worker(kB);
  Actions actions;
  const uint64_t newcomer = 9;
  EXPECT_EQ(b.receive({{newcomer, 1}, newcomer, {newcomer, 2}, true}, newcomer, actions),
            Received::kOwnerLost);
  EXPECT_EQ(sent(actions, Kind::kDelete).to, newcomer);
}

TEST(References, HandleOfALostOwnerCannotBePassedOn) {
  References a = holder(kA);
  Actions actions;
  a.lose(kOwner, actions);
  EXPECT_EQ(a.share(kRref, kFork, kChild, kB), Shared::kRefused);
}

TEST(References, DeadHoldersForkStaysUntilEverybodyAnswered) {
  References owner = worker(kOwner);
  Actions actions;
  owner.create(kRref, kFork, kA, actions);
  owner.lose(kA, actions);
  EXPECT_TRUE(actions.send.empty());
  owner.fence(kA, actions);
  ASSERT_EQ(actions.send.size(), 2u);  // To kB and kC.
  Actions first, second;
  owner.on_answer(actions.send[0], Answer::kDone, first);
  EXPECT_TRUE(first.freed.empty());
  owner.on_answer(actions.send[1], Answer::kDone, second);
  EXPECT_EQ(second.freed, std::vector<Id>{kRref});
  EXPECT_FALSE(owner.fences().due());
}

TEST(References, DeathDuringAFenceBeginsItAnew) {
  References owner = worker(kOwner);
  Actions actions;
  owner.create(kRref, kFork, kA, actions);
  owner.lose(kA, actions);
  owner.fence(kA, actions);
  const ReferenceMessage old = actions.send[0].to == kB ? actions.send[1] : actions.send[0];
  Actions again;
  owner.lose(kB, again);
  owner.on_answer(old, Answer::kDone, again);
  EXPECT_TRUE(again.freed.empty());
  owner.fence(kB, again);
  const ReferenceMessage fence = sent(again, Kind::kFence);
  EXPECT_EQ(fence.to, kC);
  EXPECT_EQ(fence.dead, (std::vector<uint64_t>{kA, kB}));
  owner.on_answer(fence, Answer::kDone, again);
  EXPECT_EQ(again.freed, std::vector<Id>{kRref});
}

TEST(References, SecondDeathBeginsTheFenceAnewThoughThatOneHadAnswered) {
  References owner = worker(kOwner);
  Actions actions;
  owner.create(kRref, kFork, kA, actions);
  owner.lose(kA, actions);
  owner.fence(kA, actions);
  ASSERT_EQ(actions.send.size(), 2u);
  const bool to_b_first = actions.send[0].to == kB;
  const ReferenceMessage of_b = actions.send[to_b_first ? 0 : 1], of_c = actions.send[to_b_first ? 1 : 0];
  Actions again;
  owner.on_answer(of_b, Answer::kDone, again);
  // Before it died it may have passed to kC what it had from the first dead worker. Nothing is kept because
  // of this second loss alone.
  owner.lose(kB, again);
  owner.on_answer(of_c, Answer::kDone, again);
  EXPECT_TRUE(again.freed.empty());
  EXPECT_TRUE(owner.fences().due());
  EXPECT_FALSE(owner.fences().running());
  owner.fence(kB, again);
  const ReferenceMessage fence = sent(again, Kind::kFence);
  EXPECT_EQ(fence.to, kC);
  EXPECT_EQ(fence.dead, (std::vector<uint64_t>{kA, kB}));
  owner.on_answer(fence, Answer::kDone, again);
  EXPECT_EQ(again.freed, std::vector<Id>{kRref});
}

TEST(References, RefusedFenceIsNotAnsweredByTheOthersAlone) {
  References owner = worker(kOwner);
  Actions actions;
  owner.create(kRref, kFork, kA, actions);
  owner.lose(kA, actions);
  owner.fence(kA, actions);
  ASSERT_EQ(actions.send.size(), 2u);
  Actions answered;
  owner.on_answer(actions.send[0], Answer::kRefused, answered);
  owner.on_answer(actions.send[1], Answer::kDone, answered);
  EXPECT_TRUE(answered.freed.empty());
  EXPECT_TRUE(owner.fences().running());
}

TEST(References, ForkThatWasTakenBackIsNotCountedAsUnsent) {
  References owner = worker(kOwner), a = holder(kA);
  owner.own(kRref);
  Actions actions;
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(owner.share(kRref, {}, {kOwner, 10 + i}, kB), Shared::kRegistered);
    EXPECT_EQ(a.share(kRref, kFork, {kA, 10 + i}, kB), Shared::kUnregistered);
  }
  EXPECT_EQ(owner.revocations().unsent(), 3u);
  EXPECT_EQ(a.revocations().unsent(), 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    owner.unshare(kRref, {kOwner, 10 + i}, kB, actions);
    a.unshare(kRref, {kA, 10 + i}, kB, actions);
  }
  EXPECT_EQ(owner.revocations().unsent(), 0u);
  EXPECT_EQ(a.revocations().unsent(), 0u);
}

TEST(References, FenceIsAnsweredWhenWhatCameFromTheDeadIsRegistered) {
  References b = worker(kB);
  Actions actions;
  (void)b.receive({kRref, kOwner, kChild, false}, kA, actions);
  const ReferenceMessage add = sent(actions, Kind::kAdd);
  Actions asked;
  EXPECT_EQ(b.on_message(kOwner, {.kind = Kind::kFence, .to = kB, .round = 1, .dead = {kA}}, true, asked),
            std::nullopt);
  EXPECT_EQ(asked.accused, std::vector<uint64_t>{kA});
  Actions lost;
  b.lose(kA, lost);
  EXPECT_TRUE(lost.fence_answers.empty());
  Actions added;
  b.on_answer(add, Answer::kDone, added);
  ASSERT_EQ(added.fence_answers.size(), 1u);
  EXPECT_EQ(added.fence_answers[0].asker, kOwner);
  EXPECT_EQ(b.fences().unanswered(), 0u);
}

// The simulator found the next two: a value was freed while a third worker's reference was not registered.
TEST(References, WorkerThatIsRefusedConfirmsNothing) {
  References b = worker(kB);
  Actions actions;
  (void)b.receive({kRref, kOwner, kChild, false}, kA, actions);
  Actions refused;
  b.on_answer(sent(actions, Kind::kAdd), Answer::kRefused, refused);
  EXPECT_EQ(refused.refused, std::vector<Id>{kChild});
  EXPECT_TRUE(refused.send.empty());
  // It does not answer a fence either, since it has not registered the fork.
  b.lose(kA, refused);
  EXPECT_EQ(b.on_message(kC, {.kind = Kind::kFence, .to = kB, .round = 1, .dead = {kA}}, true, refused),
            std::nullopt);
  EXPECT_TRUE(refused.fence_answers.empty());
}

// The sharer must not keep its fork for a receiver that the owner's policy does not let hold the reference.
TEST(References, ADeniedForkFailsAndIsGivenBack) {
  References b = worker(kB);
  Actions actions;
  (void)b.receive({kRref, kOwner, kChild, false}, kA, actions);
  Actions denied;
  b.on_answer(sent(actions, Kind::kAdd), Answer::kDenied, denied);
  EXPECT_EQ(denied.refused, std::vector<Id>{kChild});
  EXPECT_TRUE(denied.confirmed.empty());
  const ReferenceMessage confirm = sent(denied, Kind::kConfirm);
  EXPECT_EQ(confirm.to, kA);
  EXPECT_EQ(confirm.fork, kChild);
  EXPECT_EQ(b.holder().unconfirmed(), 0u);
  // Its handle is released as any other one.
  Actions released;
  b.release(kRref, kChild, released);
  EXPECT_EQ(sent(released, Kind::kDelete).to, kOwner);
  EXPECT_EQ(b.holder().forks(), 0u);
}

TEST(References, RefusalIsNoAnswerToAFence) {
  References owner = worker(kOwner);
  Actions actions;
  owner.create(kRref, kFork, kA, actions);
  owner.lose(kA, actions);
  owner.fence(kA, actions);
  Actions answered;
  for (const ReferenceMessage& fence : actions.send) owner.on_answer(fence, Answer::kRefused, answered);
  EXPECT_TRUE(answered.freed.empty());
  EXPECT_TRUE(owner.fences().due());
}

TEST(References, NothingIsTakenFromTheLost) {
  References b = worker(kB);
  Actions actions;
  b.lose(kA, actions);
  EXPECT_EQ(b.receive({kRref, kOwner, kChild, false}, kA, actions), Received::kRefused);
  EXPECT_EQ(b.on_message(kA, {.kind = Kind::kAdd, .to = kB, .rref = kRref, .fork = kFork}, true, actions),
            Answer::kRefused);
  EXPECT_EQ(b.owner().size(), 0u);
  EXPECT_TRUE(actions.send.empty());
}

References bounded(uint64_t self, const References::Bounds& bounds) {
  References references(self, bounds);
  for (uint64_t member : {kOwner, kA, kB, kC}) references.join(member);
  return references;
}

// The owner of what kA passes on never answers.
TEST(References, AWorkerCanMakeAnotherHoldALimitedNumberOfForks) {
  References b = bounded(kB, {.forks = 2});
  Actions actions;
  EXPECT_EQ(b.receive({kRref, kOwner, {kA, 1}, false}, kA, actions), Received::kUnconfirmed);
  EXPECT_EQ(b.receive({kRref, kA, {kA, 2}, true}, kA, actions), Received::kConfirmed);
  // A handle that has ended does not end the fork: its owner has not answered.
  b.release(kRref, {kA, 1}, actions);
  Actions declined;
  EXPECT_EQ(b.receive({kRref, kOwner, {kA, 3}, false}, kA, declined), Received::kTooMany);
  EXPECT_EQ(b.receive({kRref, kA, {kA, 4}, true}, kA, declined), Received::kTooMany);
  EXPECT_EQ(b.holder().forks(), 2u);
  // The sharer and the owner keep nothing for what was declined.
  const ReferenceMessage confirm = sent(declined, Kind::kConfirm);
  EXPECT_EQ(confirm.to, kA);
  EXPECT_EQ(confirm.fork, (Id{kA, 3}));
  const ReferenceMessage given_back = sent(declined, Kind::kDelete);
  EXPECT_EQ(given_back.to, kA);
  EXPECT_EQ(given_back.fork, (Id{kA, 4}));
  // Other workers, and this worker itself, are not affected.
  EXPECT_EQ(b.receive({kRref, kOwner, {kC, 1}, false}, kC, actions), Received::kUnconfirmed);
  for (uint64_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(b.receive({kRref, kOwner, {kB, i}, false}, kB, actions), Received::kUnconfirmed);
  }
  // A fork that ends makes room for another one.
  b.release(kRref, {kA, 2}, actions);
  EXPECT_EQ(b.receive({kRref, kA, {kA, 5}, true}, kA, actions), Received::kConfirmed);
  EXPECT_EQ(b.holder().count_given_by(kA), 2u);
  // So do the forks of a lost owner.
  b.lose(kOwner, actions);
  EXPECT_EQ(b.holder().count_given_by(kA), 1u);
  EXPECT_EQ(b.holder().count_given_by(kC), 0u);
}

TEST(References, AWorkerThatDoesNotAnswerGetsALimitedNumberOfMessages) {
  References b = bounded(kB, {.messages = 2});
  Actions actions;
  b.own({kB, 1});
  // Each of its own references is given back at once, with a message that it does not answer.
  for (uint64_t i = 1; i <= 2; ++i) {
    EXPECT_EQ(b.receive({kRref, kA, {kA, i}, true}, kA, actions), Received::kConfirmed);
    b.release(kRref, {kA, i}, actions);
  }
  EXPECT_EQ(b.holder().forks(), 0u);
  Actions declined;
  // Neither its own references, nor those of others, nor those that come home, nor those of an unknown owner.
  EXPECT_EQ(b.receive({kRref, kA, {kA, 3}, true}, kA, declined), Received::kTooMany);
  EXPECT_EQ(b.receive({kRref, kOwner, {kA, 4}, false}, kA, declined), Received::kTooMany);
  EXPECT_EQ(b.receive({{kB, 1}, kB, {kA, 5}, false}, kA, declined), Received::kTooMany);
  EXPECT_EQ(b.receive({kRref, 99, {kA, 6}, false}, kA, declined), Received::kOwnerLost);
  // Nor those that another worker passes on to its values.
  EXPECT_EQ(b.receive({kRref, kA, {kC, 1}, false}, kC, declined), Received::kTooMany);
  EXPECT_EQ(sent(declined, Kind::kConfirm).to, kC);
  EXPECT_EQ(b.peers().count_unacknowledged(kA), 2u);
  EXPECT_EQ(b.peers().unacknowledged(), 3u);
  // Once it answers, it may send again.
  b.on_answer(b.peers().unacknowledged(kA).front(), Answer::kDone, actions);
  EXPECT_EQ(b.receive({kRref, kA, {kA, 7}, true}, kA, actions), Received::kConfirmed);
  b.lose(kA, actions);
  EXPECT_EQ(b.peers().count_unacknowledged(kA), 0u);
}

TEST(References, DishonestReferencesAreInvalid) {
  References b = worker(kB);
  Actions actions;
  EXPECT_EQ(b.receive({{}, kOwner, kChild, false}, kA, actions), Received::kInvalid);
  EXPECT_EQ(b.receive({kRref, kOwner, {}, false}, kA, actions), Received::kInvalid);
  // Only the owner can have registered it.
  EXPECT_EQ(b.receive({kRref, kOwner, kChild, true}, kA, actions), Received::kInvalid);
  (void)b.receive({kRref, kOwner, kChild, false}, kA, actions);
  EXPECT_EQ(b.receive({kRref, kOwner, kChild, false}, kA, actions), Received::kInvalid);
}

}  // namespace
}  // namespace gradwire::rpc
