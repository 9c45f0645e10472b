#include "gradwire/tools/launch/rendezvous/client.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/manual_clock.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gradwire/tools/launch/rendezvous/record.h"

namespace gradwire::rendezvous {
namespace {

using Kind = RendezvousUpdate::Kind;

class RendezvousClientTest : public ::testing::Test {
 protected:
  std::unique_ptr<RendezvousClient> start(const std::string& host, Settings settings,
                                          ClientOptions options = {}) {
    options.node.self = {.host = host, .address = host, .roles = {{.name = "worker", .count = 2}}};
    options.node.settings = settings;
    options.node.run_id = "job7";
    return *RendezvousClient::start(
        options, [this](absl::Duration) { return store_; }, clock_);
  }

  // Waits for an update. With `time_passes` the clock moves, in steps too small to count as a pause of a
  // node.
  template <class Condition>
  RendezvousUpdate wait_for(RendezvousClient& client, Condition condition, bool time_passes = false) {
    const absl::Time end = absl::Now() + absl::Seconds(50);
    while (true) {
      const RendezvousUpdate update = client.update();
      if (condition(update)) return update;
      if (absl::Now() > end) {
        ADD_FAILURE() << "no update: " << static_cast<int>(update.kind);
        return update;
      }
      if (time_passes) clock_.advance(absl::Milliseconds(20));
      pollfd event{.fd = client.event_fd(), .events = POLLIN};
      poll(&event, 1, time_passes ? 1 : 1000);
    }
  }
  RendezvousUpdate wait_for(RendezvousClient& client, Kind kind, bool time_passes = false) {
    return wait_for(
        client, [kind](const RendezvousUpdate& update) { return update.kind == kind; }, time_passes);
  }
  void wait_for_end(RendezvousClient& client) {
    wait_for(
        client, [&](const RendezvousUpdate&) { return client.done(); }, true);
  }

  ManualClock clock_;
  std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
};

TEST_F(RendezvousClientTest, NodesRunARoundAndSucceedTogether) {
  auto a = start("a", {.min_nodes = 2, .max_nodes = 2});
  auto b = start("b", {.min_nodes = 2, .max_nodes = 2});
  const RoundInfo of_a = wait_for(*a, Kind::kRun).round, of_b = wait_for(*b, Kind::kRun).round;
  EXPECT_EQ(of_a.nodes, of_b.nodes);
  EXPECT_EQ(of_a.nodes[of_a.group_rank].host, "a");
  EXPECT_EQ(of_b.nodes[of_b.group_rank].host, "b");
  EXPECT_EQ(of_a.run_id, "job7");
  a->workers_done();
  b->workers_done();
  for (RendezvousClient* client : {a.get(), b.get()}) {
    EXPECT_TRUE(wait_for(*client, Kind::kEnded).outcome.status.ok());
    wait_for_end(*client);
  }
  // Only the record with the outcome is left.
  EXPECT_EQ(store_->num_keys(), 1);
  auto late = start("c", {.min_nodes = 2, .max_nodes = 2});
  const absl::Status status = wait_for(*late, Kind::kEnded).outcome.status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("the job job7 is over (succeeded)"), absl::string_view::npos) << status;
}

TEST_F(RendezvousClientTest, FailureRestartsAllAndThenEndsTheJob) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2, .max_restarts = 1};
  auto a = start("a", settings), b = start("b", settings);
  wait_for(*a, Kind::kRun);
  wait_for(*b, Kind::kRun);
  const Failure failure{.host = "a",
                        .rank = 1,
                        .role = "worker",
                        .local_rank = 1,
                        .pid = 4711,
                        .exit_code = 3,
                        .message = "disk full"};
  a->workers_failed(failure);
  for (RendezvousClient* client : {a.get(), b.get()}) {
    EXPECT_EQ(wait_for(*client, Kind::kStop).round.round, 0);
    client->ready();
  }
  for (RendezvousClient* client : {a.get(), b.get()}) {
    const RoundInfo round = wait_for(*client, Kind::kRun).round;
    EXPECT_EQ(round.round, 1);
    EXPECT_EQ(round.restarts_used, 1);
  }
  a->workers_failed(failure);
  for (RendezvousClient* client : {a.get(), b.get()}) {
    const Outcome outcome = wait_for(*client, Kind::kEnded).outcome;
    EXPECT_EQ(outcome.failure->message, "disk full");
    EXPECT_EQ(outcome.failure->exit_code, 3);
    EXPECT_EQ(outcome.status.message(),
              "worker 1 (role worker, local rank 1, pid 4711) on a ended with exit code 3: disk full");
    wait_for_end(*client);
  }
}

TEST_F(RendezvousClientTest, LostNodeIsNoticedAndTheOthersGoOn) {
  const Settings settings{.min_nodes = 1, .max_nodes = 2, .max_restarts = 1};
  auto a = start("a", settings), b = start("b", settings);
  wait_for(*a, Kind::kRun);
  wait_for(*b, Kind::kRun);
  b.reset();  // Without leave().
  wait_for(*a, Kind::kStop, true);
  a->ready();
  const RoundInfo round = wait_for(*a, Kind::kRun, true).round;
  ASSERT_EQ(round.nodes.size(), 1u);
  EXPECT_EQ(round.restarts_used, 1);
  const absl::StatusOr<Record> record = decode(store_->get(kStateKey));
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->failure->message, "node b was lost: no heartbeat from its launcher for 15s");
}

TEST_F(RendezvousClientTest, LeavingFixedJobEndsItForAll) {
  const Settings settings{.min_nodes = 2, .max_nodes = 2, .max_restarts = 3};
  auto a = start("a", settings), b = start("b", settings);
  wait_for(*a, Kind::kRun);
  wait_for(*b, Kind::kRun);
  a->leave("was stopped by SIGTERM");
  for (RendezvousClient* client : {a.get(), b.get()}) {
    EXPECT_EQ(wait_for(*client, Kind::kEnded).outcome.status.message(), "node a was stopped by SIGTERM");
  }
}

TEST_F(RendezvousClientTest, TooFewNodesAreNamedAfterTheJoinTimeout) {
  ClientOptions options;
  options.node.join_timeout = absl::Seconds(20);
  auto a = start("a", {.min_nodes = 3, .max_nodes = 3}, options);
  const absl::Status status = wait_for(*a, Kind::kEnded, true).outcome.status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("1 of 3 nodes have joined (a), 2 are missing"), absl::string_view::npos)
      << status;
  wait_for_end(*a);
}

TEST_F(RendezvousClientTest, StoreOfARoundIsServedByTheFirstNode) {
  ClientOptions options;
  options.node.round_store = RoundStore::kServed;
  const Settings settings{.min_nodes = 2, .max_nodes = 2};
  auto a = start("a", settings, options);
  // Wait until node a has written the record, so that it is the first.
  store_->wait({std::string(kStateKey)}, absl::Seconds(50));
  auto b = start("b", settings, options);
  wait_for(*a, Kind::kPrepareStore);
  EXPECT_EQ(b->update().kind, Kind::kWait);
  a->store_ready({.host = "a.example", .port = 4242});
  for (RendezvousClient* client : {a.get(), b.get()}) {
    EXPECT_EQ(wait_for(*client, Kind::kRun).round.store, (Address{"a.example", 4242}));
  }
}

TEST_F(RendezvousClientTest, StoreThatCannotBeReachedForLongIsLost) {
  auto server = *store::TcpStoreServer::start({.host = "127.0.0.1", .port = 0});
  store_ = *store::TcpStore::open("127.0.0.1", server->port(), {.wait_for_workers = false});
  auto a = start("a", {});
  wait_for(*a, Kind::kRun);
  server.reset();
  const absl::Status status = wait_for(*a, Kind::kEnded, true).outcome.status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("could not be reached for 1m: "), absl::string_view::npos) << status;
  EXPECT_TRUE(a->done());
}

TEST_F(RendezvousClientTest, HostOfTheStoreEndsLast) {
  ClientOptions host;
  host.node.hosts_store = true;
  const Settings settings{.min_nodes = 2, .max_nodes = 2};
  auto a = start("a", settings, host), b = start("b", settings);
  wait_for(*a, Kind::kRun);
  wait_for(*b, Kind::kRun);
  b->workers_done();
  a->workers_done();
  wait_for(*a, Kind::kEnded);
  wait_for_end(*b);
  wait_for_end(*a);
}

TEST_F(RendezvousClientTest, GarbageInTheStoreIsAnError) {
  store_->set(kStateKey, "\xff\xff garbage");
  auto a = start("a", {});
  EXPECT_EQ(wait_for(*a, Kind::kEnded).outcome.status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RendezvousClientTest, EndingWhileTheStoreIsMissingJoinsTheThread) {
  ClientOptions options;
  auto client = *RendezvousClient::start(
      options,
      [](absl::Duration) -> absl::StatusOr<std::shared_ptr<store::Store>> {
        return absl::UnavailableError("not yet");
      },
      clock_);
  EXPECT_EQ(client->update().kind, Kind::kWait);
}

TEST_F(RendezvousClientTest, StoreThatNeverStartsIsUnavailable) {
  ClientOptions options;
  options.node.join_timeout = absl::Seconds(5);
  auto client = *RendezvousClient::start(
      options,
      [this](absl::Duration) -> absl::StatusOr<std::shared_ptr<store::Store>> {
        clock_.advance(absl::Seconds(1));
        return absl::UnavailableError("connection refused");
      },
      clock_);
  const absl::Status status = wait_for(*client, Kind::kEnded).outcome.status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("within 5s: connection refused"), absl::string_view::npos) << status;
}

TEST(RendezvousClient, ImpossibleOptionsAreRefused) {
  ClientOptions options;
  options.node.settings = {.min_nodes = 3, .max_nodes = 2};
  EXPECT_EQ(RendezvousClient::start(options, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(RendezvousClient, WorksOverATcpStore) {
  const auto server = *store::TcpStoreServer::start({.host = "127.0.0.1", .port = 0});
  const auto open = [&](absl::Duration timeout) -> absl::StatusOr<std::shared_ptr<store::Store>> {
    return store::TcpStore::open("127.0.0.1", server->port(),
                                 {.timeout = timeout, .wait_for_workers = false});
  };
  std::vector<std::unique_ptr<RendezvousClient>> clients;
  for (int i = 0; i < 3; ++i) {
    ClientOptions options;
    options.node.self = {.host = std::to_string(i), .address = "127.0.0.1"};
    options.node.settings = {.min_nodes = 3, .max_nodes = 3, .fixed_ranks = true};
    options.node.node_rank = 2 - i;
    clients.push_back(*RendezvousClient::start(options, open));
  }
  const auto wait_for = [](RendezvousClient& client, Kind kind) {
    const absl::Time end = absl::Now() + absl::Seconds(50);
    RendezvousUpdate update = client.update();
    while (update.kind != kind && absl::Now() < end) {
      pollfd event{.fd = client.event_fd(), .events = POLLIN};
      poll(&event, 1, 1000);
      update = client.update();
    }
    EXPECT_EQ(update.kind, kind);
    return update;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wait_for(*clients[i], Kind::kRun).round.group_rank, 2 - i);
  for (auto& client : clients) client->workers_done();
  for (auto& client : clients) EXPECT_TRUE(wait_for(*client, Kind::kEnded).outcome.status.ok());
}

}  // namespace
}  // namespace gradwire::rendezvous
