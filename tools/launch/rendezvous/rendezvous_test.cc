#include "gradwire/tools/launch/rendezvous/rendezvous.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {
namespace {

using Kind = RendezvousUpdate::Kind;

// Several state machines around one store that always answers. settle() runs them in turn until none wants an
// operation.
class RendezvousTest : public ::testing::Test {
 protected:
  Rendezvous& add(const std::string& host, Settings settings, std::optional<int> rank = std::nullopt,
                  bool hosts_store = false) {
    Options options{.node_id = "id-" + host,
                    .self = {.host = host, .address = host, .roles = {{"worker", 1}}},
                    .settings = settings,
                    .node_rank = rank,
                    .run_id = run_id_,
                    .round_store = round_store_,
                    .hosts_store = hosts_store};
    if (settings.min_nodes == settings.max_nodes) options.last_call_timeout = absl::ZeroDuration();
    EXPECT_TRUE(check(options).ok()) << check(options);
    nodes_.push_back(std::make_unique<Rendezvous>(options, now_));
    return *nodes_.back();
  }

  // Makes the next operation of a node. Returns false if it wants none.
  bool turn(Rendezvous& node) {
    if (node.update().kind != Kind::kEnded) node.read(state_, now_);
    const Rendezvous::Wanted wanted = node.wanted(now_);
    if (wanted.beat) {
      if (wanted.beat->value) {
        beats_[wanted.beat->id] = *wanted.beat->value;
      } else {
        beats_.erase(wanted.beat->id);
      }
      node.on_beat_written(now_);
    } else if (!wanted.beats_to_read.empty()) {
      std::vector<std::optional<std::string>> beats;
      for (const std::string& id : wanted.beats_to_read) {
        beats.push_back(beats_.contains(id) ? std::optional(beats_[id]) : std::nullopt);
      }
      node.on_beats_read(beats, now_);
    } else if (wanted.change) {
      if (state_.value_or("") == wanted.change->expected) state_ = wanted.change->desired;
      node.read(state_, now_);
    } else {
      return false;
    }
    return true;
  }
  void settle() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (auto& node : nodes_) {
        while (node != nullptr && !node->done() && turn(*node)) moved = true;
      }
    }
  }
  void pass(absl::Duration time) {
    for (const absl::Time end = now_ + time; now_ < end;) {
      now_ += absl::Seconds(1);
      settle();
    }
  }
  void crash(Rendezvous& node) {
    for (auto& other : nodes_) {
      if (other.get() == &node) other.reset();
    }
  }
  Record record() const { return *decode(*state_); }

  // Options of the nodes that are added next.
  std::string run_id_ = "job";
  RoundStore round_store_ = RoundStore::kReady;

  absl::Time now_ = absl::UnixEpoch();
  std::optional<std::string> state_;
  std::map<std::string, std::string> beats_;
  std::vector<std::unique_ptr<Rendezvous>> nodes_;
};

TEST_F(RendezvousTest, WaitNamesTheNodesThatAreMissing) {
  const Settings settings{.min_nodes = 4, .max_nodes = 4, .fixed_ranks = true};
  Rendezvous& a = add("a", settings, 2);
  EXPECT_EQ(a.update().wait.text, "");
  add("b", settings, 0);
  settle();
  EXPECT_EQ(
      a.update().wait.text,
      "waiting for node ranks 1, 3 to join: 2 of 4 nodes have joined (b as node rank 0, a as node rank 2)");
  EXPECT_EQ(a.update().wait.done, 2);
  EXPECT_EQ(a.update().wait.total, 4);
  add("c", settings, 3);
  settle();
  EXPECT_EQ(
      a.update().wait.text,
      "waiting for node rank 1 to join: 3 of 4 nodes have joined (b as node rank 0, a as node rank 2, c as "
      "node rank 3)");
}

TEST_F(RendezvousTest, WaitOfAnElasticJobSaysWhenTheRoundBegins) {
  const Settings settings{.min_nodes = 2, .max_nodes = 3};
  Rendezvous& a = add("a", settings);
  settle();
  EXPECT_EQ(a.update().wait.text, "waiting for 1 more node to join: 1 of at least 2 nodes have joined (a)");
  add("b", settings);
  settle();
  EXPECT_EQ(a.update().wait.text,
            "waiting for more nodes: 2 of at most 3 have joined (a, b); the round begins when none has come "
            "for 30s");
}

TEST_F(RendezvousTest, WaitAfterTheWorkersNamesTheHostsWhoseWorkersRun) {
  const Settings settings{.min_nodes = 3, .max_nodes = 3};
  Rendezvous& a = add("a", settings);
  add("b", settings);
  Rendezvous& c = add("c", settings);
  settle();
  a.workers_done(now_);
  settle();
  EXPECT_EQ(a.update().wait.text, "waiting for the workers on b, c to end");
  c.workers_done(now_);
  settle();
  EXPECT_EQ(a.update().wait.text, "waiting for the workers on b to end");
}

TEST_F(RendezvousTest, FixedRanksDecideTheOrder) {
  const Settings settings{.min_nodes = 3, .max_nodes = 3, .fixed_ranks = true};
  Rendezvous& a = add("a", settings, 2);
  Rendezvous& b = add("b", settings, 0);
  Rendezvous& c = add("c", settings, 1);
  settle();
  EXPECT_EQ(a.update().round.group_rank, 2);
  EXPECT_EQ(b.update().round.group_rank, 0);
  EXPECT_EQ(c.update().round.group_rank, 1);
}

TEST_F(RendezvousTest, RankGivenTwiceIsRefusedOnceTheOthersBeatMoves) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2, .fixed_ranks = true};
  add("a", settings, 1);
  settle();
  Rendezvous& b = add("b", settings, 1);
  settle();
  EXPECT_EQ(b.update().kind, Kind::kWait);
  pass(absl::Seconds(10));
  ASSERT_EQ(b.update().kind, Kind::kEnded);
  EXPECT_EQ(b.update().outcome.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(b.update().outcome.status.message(),
            "node rank 1 is used by two launchers, on a and on b: give each node a --node_rank of its own");
}

TEST_F(RendezvousTest, RestartedLauncherGetsItsRankBack) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .fixed_ranks = true};
  Rendezvous& a = add("a", settings, 0);
  Rendezvous& b = add("b", settings, 1);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kRun);
  crash(b);
  Rendezvous& again = add("b2", settings, 1);
  pass(absl::Seconds(25));
  EXPECT_EQ(a.update().kind, Kind::kStop);
  a.ready(now_);
  settle();
  EXPECT_EQ(again.update().kind, Kind::kRun);
  EXPECT_EQ(again.update().round.group_rank, 1);
  EXPECT_EQ(again.update().round.restarts_used, 1);
}

TEST_F(RendezvousTest, OtherSettingsAreRefusedAndBothNamed) {
  add("a", {.min_nodes = 2, .max_nodes = 4, .max_restarts = 1});
  settle();
  Rendezvous& b = add("b", {.min_nodes = 2, .max_nodes = 3, .max_restarts = 1});
  settle();
  EXPECT_EQ(
      b.update().outcome.status,
      absl::InvalidArgumentError(
          "this node was started with --nnodes=2:3 --max_restarts=1 without node ranks, but the job job has "
          "--nnodes=2:4 --max_restarts=1 without node ranks: start all nodes alike"));
}

TEST_F(RendezvousTest, LastCallWaitsForMoreThanMin) {
  const Settings settings{.min_nodes = 2, .max_nodes = 4};
  Rendezvous& a = add("a", settings);
  add("b", settings);
  pass(absl::Seconds(20));
  EXPECT_EQ(a.update().kind, Kind::kWait);
  add("c", settings);
  pass(absl::Seconds(11));
  ASSERT_EQ(a.update().kind, Kind::kRun);
  EXPECT_EQ(a.update().round.nodes.size(), 3u);
}

TEST_F(RendezvousTest, WorkersFailureRestartsWithoutALastCall) {
  const Settings settings{.min_nodes = 1, .max_nodes = 4, .max_restarts = 1};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  pass(absl::Seconds(31));
  ASSERT_EQ(b.update().kind, Kind::kRun);
  a.workers_failed({.rank = 0, .exit_code = 1}, now_);
  settle();
  ASSERT_EQ(b.update().kind, Kind::kStop);
  a.ready(now_);
  settle();
  EXPECT_EQ(a.update().kind, Kind::kWait);  // Waits for b.
  b.ready(now_);
  settle();
  EXPECT_EQ(a.update().kind, Kind::kRun);
  EXPECT_EQ(a.update().round.round, 1);
}

TEST_F(RendezvousTest, NewNodeIsAdmittedWithoutARestart) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2};
  Rendezvous& a = add("a", settings);
  pass(absl::Seconds(31));
  Rendezvous& b = add("b", settings);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kStop);
  a.ready(now_);
  settle();
  EXPECT_EQ(b.update().kind, Kind::kRun);
  EXPECT_EQ(b.update().round.nodes.size(), 2u);
  EXPECT_EQ(b.update().round.group_rank, 1);
  EXPECT_EQ(b.update().round.restarts_used, 0);
}

TEST_F(RendezvousTest, SpareNodeReplacesOneThatLeaves) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  Rendezvous& spare = add("c", settings);
  settle();
  ASSERT_EQ(spare.update().kind, Kind::kWait);
  b.leave("was stopped by SIGTERM", now_);
  settle();
  EXPECT_EQ(b.update().outcome.status.code(), absl::StatusCode::kCancelled);
  a.ready(now_);
  settle();
  EXPECT_EQ(spare.update().kind, Kind::kRun);
  EXPECT_EQ(record().restarts_used, 0);
}

// The job continues with exactly min nodes, but not with one less.
TEST_F(RendezvousTest, NodeThatLeavesTooFewBehindEndsTheJob) {
  const Settings settings{.min_nodes = 2, .max_nodes = 3, .max_restarts = 5};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  Rendezvous& c = add("c", settings);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kRun);
  c.leave("was stopped by SIGTERM", now_);
  settle();
  EXPECT_EQ(c.update().outcome.status.code(), absl::StatusCode::kCancelled);
  ASSERT_EQ(a.update().kind, Kind::kStop);
  a.ready(now_);
  b.ready(now_);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kRun);
  EXPECT_EQ(a.update().round.nodes.size(), 2u);
  b.leave("was stopped by SIGTERM", now_);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kEnded);
  EXPECT_EQ(a.update().outcome.status.code(), absl::StatusCode::kAborted) << a.update().outcome.status;
  EXPECT_EQ(record().phase, Phase::kClosed);
  ASSERT_TRUE(record().failure.has_value());
  EXPECT_EQ(record().failure->message, "node b was stopped by SIGTERM");
}

TEST_F(RendezvousTest, HostOfTheStoreThatLeavesEndsTheJob) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  Rendezvous& host = add("a", settings, std::nullopt, /*hosts_store=*/true);
  Rendezvous& other = add("b", settings);
  settle();
  host.leave("was stopped by SIGTERM", now_);
  settle();
  ASSERT_EQ(other.update().kind, Kind::kEnded);
  EXPECT_EQ(other.update().outcome.status.message(),
            "node a, which serves the job's store, was stopped by SIGTERM");
  pass(absl::Seconds(1));
  EXPECT_TRUE(host.done());
}

TEST_F(RendezvousTest, DoneNodeThatLeavesEndsTheRoundIfItServesTheStore) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  round_store_ = RoundStore::kServed;
  Rendezvous& server = add("a", settings);
  Rendezvous& other = add("b", settings);
  settle();
  ASSERT_EQ(server.update().kind, Kind::kPrepareStore);
  server.store_ready({.host = "a", .port = 1}, now_);
  settle();
  ASSERT_EQ(other.update().kind, Kind::kRun);
  server.workers_done(now_);
  settle();
  server.leave("was stopped by SIGTERM", now_);
  settle();
  EXPECT_EQ(other.update().kind, Kind::kStop);
}

TEST_F(RendezvousTest, GroupRankZeroPreparesTheSharedStoreOfEachRound) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  round_store_ = RoundStore::kPrepared;
  Rendezvous& first = add("a", settings);
  Rendezvous& other = add("b", settings);
  settle();
  ASSERT_EQ(first.update().kind, Kind::kPrepareStore);
  EXPECT_EQ(other.update().kind, Kind::kWait);
  first.store_ready({.host = "s", .port = 1}, now_);
  settle();
  EXPECT_EQ(first.update().kind, Kind::kRun);
  ASSERT_EQ(other.update().kind, Kind::kRun);
  EXPECT_EQ(other.update().round.store->host, "s");
  other.workers_failed({.host = "b", .exit_code = 1}, now_);
  settle();
  first.ready(now_);
  other.ready(now_);
  settle();
  ASSERT_EQ(first.update().kind, Kind::kPrepareStore);
  EXPECT_EQ(first.update().round.round, 1);
  EXPECT_EQ(other.update().kind, Kind::kWait);
}

TEST_F(RendezvousTest, DoneNodeThatLeavesIsNotMissedIfItOnlyPreparedTheStore) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  round_store_ = RoundStore::kPrepared;
  Rendezvous& first = add("a", settings);
  Rendezvous& other = add("b", settings);
  settle();
  first.store_ready({.host = "s", .port = 1}, now_);
  settle();
  first.workers_done(now_);
  settle();
  first.leave("was stopped by SIGTERM", now_);
  settle();
  EXPECT_EQ(other.update().kind, Kind::kRun);
}

TEST_F(RendezvousTest, FirstNodeWithAnIdNamesTheJob) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2};
  run_id_ = kNoRunId;
  Rendezvous& a = add("a", settings);
  settle();
  run_id_ = "job";
  Rendezvous& b = add("b", settings);
  settle();
  EXPECT_EQ(a.update().round.run_id, "job");
  EXPECT_EQ(b.update().round.run_id, "job");
}

TEST_F(RendezvousTest, WaitingNodesAreAdmittedOnlyUpToMaxNodes) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 3};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  settle();
  ASSERT_EQ(a.update().kind, Kind::kRun);
  add("c", settings);
  add("d", settings);
  settle();
  ASSERT_EQ(record().waiting.size(), 2u);
  crash(b);
  pass(absl::Seconds(30));
  ASSERT_EQ(a.update().kind, Kind::kStop);
  a.ready(now_);
  pass(absl::Seconds(31));
  EXPECT_EQ(a.update().kind, Kind::kRun);
  EXPECT_EQ(record().participants.size(), 2u);
  EXPECT_EQ(record().waiting.size(), 1u);
}

TEST_F(RendezvousTest, NodeRemovedAsLostStopsAndEntersAgain) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  settle();
  ASSERT_EQ(b.update().kind, Kind::kRun);
  // Node b is paused.
  std::unique_ptr<Rendezvous> paused = std::move(nodes_[1]);
  pass(absl::Seconds(30));
  a.ready(now_);
  settle();
  nodes_[1] = std::move(paused);
  settle();
  ASSERT_EQ(b.update().kind, Kind::kStop);
  EXPECT_EQ(record().waiting.size(), 0u);
  b.ready(now_);
  settle();
  EXPECT_NE(b.id(), "id-b");
  a.ready(now_);
  pass(absl::Seconds(31));
  EXPECT_EQ(a.update().kind, Kind::kRun);
  EXPECT_EQ(b.update().kind, Kind::kRun);
  EXPECT_EQ(b.update().round.nodes.size(), 2u);
}

TEST_F(RendezvousTest, WaitingNodesContinueWhenAllParticipantsHaveDied) {
  const Settings settings{.min_nodes = 1, .max_nodes = 1, .max_restarts = 1};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  settle();
  crash(a);
  pass(absl::Seconds(30));
  EXPECT_EQ(b.update().kind, Kind::kRun);
}

// Found by the simulation, seed 45310.
TEST_F(RendezvousTest, RankOfADoneAndDeadNodeIsFreeAfterTheRound) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .fixed_ranks = true};
  Rendezvous& a = add("a", settings, 0);
  Rendezvous& b = add("b", settings, 1);
  settle();
  b.workers_done(now_);
  settle();
  crash(a);
  crash(b);
  Rendezvous& c = add("c", settings, 1);
  pass(absl::Seconds(50));
  Rendezvous& d = add("d", settings, 0);
  settle();
  EXPECT_EQ(c.update().kind, Kind::kRun);
  EXPECT_EQ(d.update().round.round, 1);
}

TEST_F(RendezvousTest, NodeThatIsDoneIsNotLost) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2};
  Rendezvous& a = add("a", settings);
  Rendezvous& b = add("b", settings);
  settle();
  a.workers_done(now_);
  settle();
  crash(a);
  pass(absl::Minutes(2));
  EXPECT_EQ(b.update().kind, Kind::kRun);
  b.workers_done(now_);
  settle();
  EXPECT_TRUE(b.update().outcome.status.ok());
}

TEST_F(RendezvousTest, RecordThatVanishesEndsTheNode) {
  Rendezvous& a = add("a", {});
  settle();
  a.read(std::nullopt, now_);
  EXPECT_EQ(a.update().outcome.status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(RendezvousTest, OutdatedAnswerIsIgnored) {
  Rendezvous& a = add("a", {.min_nodes = 1, .max_nodes = 2});
  turn(a), turn(a), turn(a);
  const std::string old = *state_;
  pass(absl::Seconds(31));
  ASSERT_EQ(a.update().kind, Kind::kRun);
  a.read(old, now_);
  EXPECT_EQ(a.update().kind, Kind::kRun);
}

}  // namespace
}  // namespace gradwire::rendezvous
