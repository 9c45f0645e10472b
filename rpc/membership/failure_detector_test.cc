#include "gradwire/rpc/membership/failure_detector.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using Actions = FailureDetector::Actions;
using State = FailureDetector::State;

constexpr uint64_t kPeer = 7;
const HeartbeatOptions kOptions;  // 1 s, 3 s, 20 s.

class FailureDetectorTest : public ::testing::Test {
 protected:
  // Ticks as production code does, for `duration`.
  Actions run(absl::Duration duration, bool peer_sends) {
    Actions all;
    const absl::Time until = now_ + duration;
    while (detector_.next() <= until) {
      now_ = std::max(now_, detector_.next());
      if (peer_sends) detector_.received(kPeer, now_, all);
      detector_.tick(now_, all);
    }
    now_ = until;
    return all;
  }
  void connect() {
    Actions actions;
    detector_.connected(kPeer, now_, actions);
    EXPECT_EQ(detector_.state(kPeer), State::kAlive);
  }

  absl::Time now_ = absl::UnixEpoch();
  FailureDetector detector_{kOptions};
};

TEST_F(FailureDetectorTest, UnwatchedNeedsNoClock) {
  EXPECT_EQ(detector_.next(), absl::InfiniteFuture());
  EXPECT_EQ(detector_.state(kPeer), State::kUnwatched);
  connect();
  detector_.remove(kPeer);
  EXPECT_EQ(detector_.next(), absl::InfiniteFuture());
}

TEST_F(FailureDetectorTest, PeerThatSendsStaysAliveAndGetsHeartbeats) {
  connect();
  const Actions actions = run(absl::Seconds(30), true);
  EXPECT_EQ(actions.heartbeat.size(), 30u);
  EXPECT_TRUE(actions.changes.empty());
  EXPECT_TRUE(actions.accuse.empty());
}

TEST_F(FailureDetectorTest, PeerWhoseHostWasNeverFoundIsNotAccused) {
  // Each call begins an attempt, and the lookup of the name hangs for a while.
  for (int i = 0; i < 10; ++i) {
    Actions actions;
    detector_.attempted(kPeer, now_, actions);
    actions = run(absl::Seconds(10), false);
    ASSERT_EQ(actions.changes.size(), 1u);
    EXPECT_EQ(actions.changes[0].state, State::kSuspect);
    EXPECT_TRUE(actions.accuse.empty());
    actions = {};
    detector_.unresolved(kPeer, now_, actions);
    ASSERT_EQ(actions.changes.size(), 1u);
    EXPECT_EQ(actions.changes[0].state, State::kAlive);
    EXPECT_TRUE(actions.probe.empty());
    EXPECT_EQ(detector_.state(kPeer), State::kUnwatched);
    EXPECT_EQ(detector_.next(), absl::InfiniteFuture());
  }
}

TEST_F(FailureDetectorTest, PeerWhoseHostIsNotFoundAnyMoreIsAccused) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  detector_.unresolved(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  actions = run(absl::Seconds(21), false);
  EXPECT_FALSE(actions.probe.empty());
  EXPECT_FALSE(actions.accuse.empty());
}

TEST_F(FailureDetectorTest, SilentPeerIsSuspectAndThenAccused) {
  connect();
  Actions actions = run(absl::Seconds(4), false);
  ASSERT_EQ(actions.changes.size(), 1u);
  EXPECT_EQ(actions.changes[0].state, State::kSuspect);
  EXPECT_EQ(actions.changes[0].why, FailureDetector::Why::kSilent);
  EXPECT_TRUE(actions.accuse.empty());
  actions = run(absl::Seconds(17), false);
  EXPECT_FALSE(actions.accuse.empty());
  // Until the group decides, a message may still arrive from the peer.
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  detector_.received(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kAlive);
}

TEST_F(FailureDetectorTest, BrokenConnectionIsProbedAtOnce) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  EXPECT_EQ(actions.probe, std::vector<uint64_t>{kPeer});
  detector_.connected(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kAlive);
}

TEST_F(FailureDetectorTest, RefusedTwiceIsDeadForGood) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  detector_.refused(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  EXPECT_LE(detector_.next(), now_ + absl::Milliseconds(10));
  const Actions again = run(absl::Milliseconds(10), false);
  EXPECT_EQ(again.probe, std::vector<uint64_t>{kPeer});
  detector_.refused(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kDead);
  detector_.connected(kPeer, now_, actions);
  detector_.received(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kDead);
}

TEST_F(FailureDetectorTest, RefusalBeforeAConnectionDoesNotCountAfterIt) {
  Actions actions;
  for (int i = 0; i < 5; ++i) {
    connect();
    detector_.disconnected(kPeer, now_, actions);
    detector_.refused(kPeer, now_, actions);
    EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  }
}

TEST_F(FailureDetectorTest, MessageReadAfterTheConnectionBrokeIsNotASignOfLife) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  detector_.received(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
}

TEST_F(FailureDetectorTest, UnreachableHostDoesNotProveADeath) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  for (int i = 0; i < 5; ++i) {
    detector_.refused(kPeer, now_, actions);
    detector_.unreachable(kPeer, now_, actions);
  }
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  EXPECT_FALSE(run(absl::Seconds(1), false).probe.empty());
}

TEST_F(FailureDetectorTest, AttemptThatThisWorkerCouldNotMakeChangesNoState) {
  Actions actions;
  detector_.attempted(kPeer, now_, actions);
  detector_.postponed(kPeer, now_, actions);
  EXPECT_TRUE(actions.changes.empty());
  EXPECT_LE(detector_.next(), now_ + absl::Milliseconds(100));
  EXPECT_EQ(run(absl::Milliseconds(100), false).probe, std::vector<uint64_t>{kPeer});
}

TEST_F(FailureDetectorTest, SilenceDoesNotCountWhileAttemptsArePostponed) {
  Actions actions;
  detector_.attempted(kPeer, now_, actions);
  for (int i = 0; i < 1'000; ++i) {
    detector_.postponed(kPeer, now_, actions);
    const Actions next = run(absl::Milliseconds(100), false);
    ASSERT_TRUE(next.changes.empty() && next.accuse.empty()) << i;
    ASSERT_EQ(next.probe.size(), 1U) << i;
  }
  // The attempts can be made again, and the peer does not answer.
  detector_.unreachable(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
  EXPECT_TRUE(run(absl::Seconds(10), false).accuse.empty());
  EXPECT_FALSE(run(absl::Seconds(20), false).accuse.empty());
}

TEST_F(FailureDetectorTest, SuspectStaysSuspectWhileAttemptsArePostponed) {
  connect();
  Actions actions;
  detector_.disconnected(kPeer, now_, actions);
  detector_.postponed(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kSuspect);
}

TEST_F(FailureDetectorTest, RefusalWhileConnectedIsIgnored) {
  connect();
  Actions actions;
  detector_.refused(kPeer, now_, actions);
  detector_.refused(kPeer, now_, actions);
  EXPECT_EQ(detector_.state(kPeer), State::kAlive);
}

TEST_F(FailureDetectorTest, OwnPauseDoesNotCountAsSilence) {
  connect();
  (void)run(absl::Seconds(2), true);
  now_ += absl::Seconds(100);
  Actions actions;
  detector_.tick(now_, actions);
  EXPECT_TRUE(actions.accuse.empty());
  EXPECT_TRUE(actions.changes.empty());
  // Silence after the pause counts.
  EXPECT_FALSE(run(absl::Seconds(21), false).accuse.empty());
}

}  // namespace
}  // namespace gradwire::rpc
