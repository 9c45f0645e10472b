#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/rpc/calls/agent.h"
#include "gradwire/rpc/calls/call.h"
#include "gradwire/rpc/membership/group_log.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"

// Two workers want the same name or rank. Every worker of the group learns the reason at once, instead of
// waiting for a group that cannot form.
namespace gradwire::rpc {
namespace {

using ::testing::HasSubstr;

// Timeout of a join. A worker that waits in vain waits for this long.
constexpr absl::Duration kJoinTimeout = absl::Minutes(3);
constexpr absl::Duration kAtOnce = absl::Seconds(60);

int64_t add(int64_t a, int64_t b) { return a + b; }
GRADWIRE_RPC(add)

struct Start {
  std::shared_ptr<Agent> agent;
  absl::Status status;
};

Start start(const std::string& name, int rank, int world_size, RpcBackendOptions options) {
  options.join_timeout = kJoinTimeout;
  try {
    return {Agent::start(name, rank, world_size, options), absl::OkStatus()};
  } catch (const Error& error) {
    return {nullptr, error.status()};
  }
}

std::future<Start> start_async(const std::string& name, int rank, int world_size,
                               const RpcBackendOptions& options) {
  return std::async(std::launch::async, start, name, rank, world_size, options);
}

RpcBackendOptions with_store() {
  RpcBackendOptions options;
  options.store = std::make_shared<store::HashStore>();
  return options;
}

void expect_refused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

void shut_down(std::vector<Start> group) {
  std::vector<std::future<void>> ends;
  for (Start& member : group) {
    ends.push_back(std::async(std::launch::async, [agent = member.agent] { agent->shutdown(); }));
  }
  for (std::future<void>& end : ends) end.get();
}

// Expects that every start fails with an error that contains `text`.
void expect_all_refused(std::vector<std::future<Start>> starts, const std::string& text) {
  for (std::future<Start>& started : starts) {
    const Start one = started.get();
    EXPECT_EQ(one.agent, nullptr);
    expect_refused(one.status, text);
  }
}

// Call after a refusal. Waits until a member of the next attempt has joined.
void wait_until_begun_anew(const RpcBackendOptions& options) {
  GroupLog log(std::make_shared<store::PrefixStore>("rpc", options.store));
  for (bool failed = false; !failed || log.formation().has_failed();) {
    ASSERT_TRUE(log.read(kAtOnce).ok());
    failed |= log.formation().has_failed();
  }
}

void expect_group(std::vector<std::future<Start>> starts) {
  std::vector<Start> group;
  for (std::future<Start>& started : starts) group.push_back(started.get());
  for (const Start& member : group) ASSERT_TRUE(member.status.ok()) << member.status;
  EXPECT_EQ(group[0].agent->rpc_sync<&add>(group.back().agent->get_worker_info().name, 1, 2), 3);
  shut_down(std::move(group));
}

TEST(TwoWantOnePlace, AllLearnAtOnceOfARankInAStore) {
  const RpcBackendOptions options = with_store();
  const absl::Time begin = absl::Now();
  std::vector<std::future<Start>> starts;
  starts.push_back(start_async("a", 0, 4, options));
  starts.push_back(start_async("b", 1, 4, options));
  starts.push_back(start_async("c", 1, 4, options));
  expect_all_refused(std::move(starts), "rank 1 is taken by worker \"");
  EXPECT_LT(absl::Now() - begin, kAtOnce);
}

TEST(TwoWantOnePlace, AllLearnAtOnceOfANameWhateverTheInitMethod) {
  RpcBackendOptions by_file;
  by_file.init_method = absl::StrCat("file://", ::testing::TempDir(), "/two_want_one_name");
  RpcBackendOptions by_tcp;
  by_tcp.init_method = absl::StrCat("tcp://127.0.0.1:", free_port());
  for (const RpcBackendOptions& options : {with_store(), by_file, by_tcp}) {
    const absl::Time begin = absl::Now();
    std::vector<std::future<Start>> starts;
    starts.push_back(start_async("a", 0, 3, options));
    starts.push_back(start_async("same", 1, 3, options));
    starts.push_back(start_async("same", 2, 3, options));
    expect_all_refused(std::move(starts), "the worker name \"same\" is taken by rank");
    EXPECT_LT(absl::Now() - begin, kAtOnce) << options.init_method;
  }
}

TEST(TwoWantOnePlace, AllLearnAtOnceOfTwoWorldSizes) {
  const RpcBackendOptions options = with_store();
  const absl::Time begin = absl::Now();
  std::vector<std::future<Start>> starts;
  starts.push_back(start_async("a", 0, 3, options));
  starts.push_back(start_async("b", 1, 4, options));
  expect_all_refused(std::move(starts), "start all workers with the same world size");
  EXPECT_LT(absl::Now() - begin, kAtOnce);
}

TEST(TwoWantOnePlace, WorkerThatComesWhenTheOthersHaveLeftIsToldOnceAndAtOnce) {
  const RpcBackendOptions options = with_store();
  const absl::Time begin = absl::Now();
  std::vector<std::future<Start>> starts;
  starts.push_back(start_async("a", 0, 3, options));
  starts.push_back(start_async("b", 1, 3, options));
  starts.push_back(start_async("c", 1, 3, options));
  expect_all_refused(std::move(starts), "rank 1 is taken by worker \"");
  expect_refused(start("late", 2, 3, options).status, "the group cannot form: rank 1 is taken by worker \"");
  EXPECT_LT(absl::Now() - begin, kAtOnce);
  // A second attempt of all workers succeeds.
  starts.clear();
  starts.push_back(start_async("a", 0, 3, options));
  starts.push_back(start_async("b", 1, 3, options));
  starts.push_back(start_async("late", 2, 3, options));
  expect_group(std::move(starts));
}

// Late ranks come one after the other when all members have left. Each learns the reason once, and its next
// attempt succeeds.
TEST(TwoWantOnePlace, EachOfTheLateWorkersIsToldOnce) {
  const RpcBackendOptions options = with_store();
  std::vector<std::future<Start>> starts;
  starts.push_back(start_async("b", 1, 4, options));
  starts.push_back(start_async("c", 1, 4, options));
  expect_all_refused(std::move(starts), "rank 1 is taken by worker \"");
  const std::string reason = "the group cannot form: rank 1 is taken by worker \"";
  expect_refused(start("a", 0, 4, options).status, reason);
  expect_refused(start("d", 2, 4, options).status, reason);
  // Once one of them has joined again, no worker is late, not even the rank that has never come.
  starts.clear();
  starts.push_back(start_async("d", 2, 4, options));
  ASSERT_NO_FATAL_FAILURE(wait_until_begun_anew(options));
  starts.push_back(start_async("a", 0, 4, options));
  starts.push_back(start_async("b", 1, 4, options));
  starts.push_back(start_async("e", 3, 4, options));
  expect_group(std::move(starts));
}

TEST(TwoWantOnePlace, NextAttemptInTheSameStoreSucceeds) {
  const RpcBackendOptions options = with_store();
  for (int attempt = 0; attempt < 3; ++attempt) {
    std::vector<std::future<Start>> starts;
    starts.push_back(start_async("a", 0, 3, options));
    starts.push_back(start_async("b", 0, 3, options));
    expect_all_refused(std::move(starts), "rank 0 is taken by worker \"");
    std::vector<std::future<Start>> others;
    // Rank 0 comes a second time before ranks that have never come.
    others.push_back(start_async("a", 0, 3, options));
    ASSERT_NO_FATAL_FAILURE(wait_until_begun_anew(options));
    others.push_back(start_async("b", 1, 3, options));
    others.push_back(start_async("c", 2, 3, options));
    expect_group(std::move(others));
  }
}

TEST(TwoWantOnePlace, CompleteGroupGoesOnAndOnlyTheLateWorkerIsRefused) {
  const RpcBackendOptions options = with_store();
  std::future<Start> second = start_async("b", 1, 2, options);
  Start first = start("a", 0, 2, options);
  Start other = second.get();
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_TRUE(other.status.ok()) << other.status;
  expect_refused(start("c", 1, 2, options).status, "rank 1 is taken by worker \"b\"");
  expect_refused(start("a", 1, 2, options).status, "taken");
  EXPECT_EQ(first.agent->rpc_sync<&add>("b", 1, 2), 3);
  EXPECT_EQ(first.agent->get_worker_infos().size(), 2u);
  shut_down({first, other});
}

}  // namespace
}  // namespace gradwire::rpc
