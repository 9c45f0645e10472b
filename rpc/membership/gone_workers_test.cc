#include "gradwire/rpc/membership/gone_workers.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "gradwire/rpc/callee/deduplicator.h"
#include "gradwire/rpc/link/agent_tables.h"
#include "gradwire/rpc/link/link.h"
#include "gradwire/rpc/link/peers.h"
#include "gradwire/rpc/rref/owner_table.h"
#include "gradwire/rpc/rref/references.h"
#include "gradwire/rpc/testing/ignoring_sink.h"

// The memory about lost workers is bounded in every class that keeps some.
namespace gradwire::rpc {
namespace {

constexpr uint64_t kMany = GoneWorkers::kMax + 100;

TEST(GoneWorkers, OldestAreForgotten) {
  GoneWorkers gone;
  for (uint64_t worker = 1; worker <= kMany; ++worker) EXPECT_TRUE(gone.insert(worker));
  EXPECT_FALSE(gone.insert(kMany));
  EXPECT_EQ(gone.size(), GoneWorkers::kMax);
  EXPECT_FALSE(gone.contains(100));
  EXPECT_TRUE(gone.contains(101));
  EXPECT_EQ(gone.sorted().front(), 101u);
}

TEST(GoneWorkers, ReferencesRememberABoundedNumber) {
  References references(/*self=*/1'000'000);
  References::Actions actions;
  for (uint64_t worker = 1; worker <= kMany; ++worker) {
    references.join(worker);
    references.lose(worker, actions);
    references.fence(worker, actions);
  }
  EXPECT_EQ(references.peers().lost().size(), GoneWorkers::kMax);
  EXPECT_EQ(references.fences().unfenced(), 0u);
  EXPECT_TRUE(references.peers().is_lost(kMany));
  EXPECT_FALSE(references.peers().is_lost(1));
}

TEST(GoneWorkers, RevokedReferencesOfALiveSharerAreBounded) {
  constexpr uint64_t kSharer = 2;
  References references(/*self=*/1);
  references.join(kSharer);
  References::Actions actions;
  for (uint64_t child = 1; child <= Revocations::kMax + 10; ++child) {
    references.on_message(kSharer,
                          {.kind = ReferenceMessage::Kind::kRevoke, .rref = {1, 5}, .fork = {kSharer, child}},
                          /*settled=*/false, actions);
  }
  EXPECT_EQ(references.revocations().revoked(), Revocations::kMax);
  EXPECT_FALSE(references.revocations().is_revoked(kSharer, {kSharer, 10}));
  EXPECT_TRUE(references.revocations().is_revoked(kSharer, {kSharer, 11}));
  references.lose(kSharer, actions);
  EXPECT_EQ(references.revocations().revoked(), 0u);
}

TEST(GoneWorkers, PeersKeepTheNewest) {
  testing::IgnoringSink sink;
  TimerQueue timers;
  Peers peers({}, sink, timers, Peers::Options());
  const Worker self{"self", 0, 1'000'000};
  peers.set_workers(self, {{self, proto::WorkerRecord()}}, {});
  const auto worker = [](uint64_t number) {
    return Worker{absl::StrCat("worker", number), static_cast<int32_t>(number), number};
  };
  for (uint64_t number = 1; number <= 2 * kMany; ++number) {
    peers.add_worker({worker(number), proto::WorkerRecord()});
    peers.lose(worker(number), WorkerState::kDead, absl::UnavailableError("gone"));
  }
  AgentTables tables;
  peers.count(tables);
  EXPECT_EQ(tables.known_workers, GoneWorkers::kMax + 1);
  EXPECT_EQ(tables.gone_workers, GoneWorkers::kMax);
  EXPECT_EQ(peers.workers().size(), GoneWorkers::kMax + 1);
  EXPECT_EQ(peers.status(worker(2 * kMany)).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(peers.find("worker1", -1).ok());
  EXPECT_TRUE(peers.status(self).ok());
}

TEST(GoneWorkers, LateRequestOfALostCallerLeavesNoEntry) {
  constexpr uint64_t kCaller = 7;
  Deduplicator requests{RetryOptions()};
  const absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(requests.arrive(kCaller, 1, 0, {1, 1}, now).verdict, Deduplicator::Verdict::kRun);
  EXPECT_EQ(requests.forget(kCaller).size(), 1u);
  EXPECT_TRUE(requests.end(kCaller, 1, nullptr, 0, now).has_value());
  EXPECT_EQ(requests.callers(), 0u);
  EXPECT_EQ(requests.arrive(kCaller, 2, 0, {1, 2}, now).verdict, Deduplicator::Verdict::kStale);
  EXPECT_EQ(requests.callers(), 0u);
}

TEST(GoneWorkers, NumbersOfAnswersOfALiveCallerAreBounded) {
  constexpr uint64_t kCaller = 7;
  RetryOptions options;
  options.max_answers = 8;
  Deduplicator requests{options};
  const absl::Time now = absl::UnixEpoch();
  std::mt19937_64 random(20261122);
  uint64_t next = 1, watermark = 1;
  for (int step = 0; step < 20'000; ++step) {
    // A mix of new requests, repetitions of recent ones, and a rising watermark.
    const uint64_t request = random() % 3 == 0 ? next++ : watermark + random() % (next - watermark + 1);
    if (random() % 4 == 0 && watermark + 4 < next) ++watermark;
    const auto arrival = requests.arrive(kCaller, request, watermark, {1, static_cast<uint64_t>(step)}, now);
    if (arrival.verdict == Deduplicator::Verdict::kRun)
      requests.end(kCaller, request, std::make_shared<int>(step), 1, now);
    ASSERT_LE(requests.answers(), 8u);
    ASSERT_LE(requests.remembered(), 2 * requests.answers() + 16);
    requests.take_dropped();
  }
}

}  // namespace
}  // namespace gradwire::rpc
