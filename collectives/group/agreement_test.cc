#include "gradwire/collectives/group/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/interface/forwarding_store.h"

namespace gradwire::collectives {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A timeout that is long enough for all ranks that take part to arrive.
constexpr absl::Duration kLate = absl::Seconds(2);

std::vector<std::string> run(store::Store& store, const std::vector<int>& ranks, int size,
                             absl::Duration timeout, const Judge& judge = nullptr, bool name_all = true) {
  std::vector<std::string> verdicts(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      verdicts[i] = agree({.store = store,
                           .key = "round",
                           .rank = ranks[i],
                           .size = size,
                           .deadline = Clock::system().now() + timeout,
                           .name_all = name_all},
                          absl::StrCat("text ", ranks[i]), judge)
                        .ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return verdicts;
}

TEST(Agreement, AllGetOkWhenAllHaveCome) {
  store::HashStore store;
  EXPECT_THAT(run(store, {0, 1, 2}, 3, absl::Seconds(30)), Each("OK"));
}

TEST(Agreement, AllRanksGetTheVerdictOfRankZero) {
  store::HashStore store;
  const Judge judge = [](int rank, absl::string_view first, absl::string_view text) -> absl::Status {
    EXPECT_EQ(first, "text 0");
    EXPECT_EQ(text, absl::StrCat("text ", rank));
    return rank == 2 ? absl::InvalidArgumentError("rank 2 has another value") : absl::OkStatus();
  };
  EXPECT_THAT(run(store, {0, 1, 2, 3}, 4, absl::Seconds(30), judge),
              Each("INVALID_ARGUMENT: rank 2 has another value"));
}

TEST(Agreement, MissingRanksAreNamedToAll) {
  store::HashStore store;
  EXPECT_THAT(run(store, {0, 2}, 4, kLate), Each(HasSubstr("ranks 1, 3 did not arrive")));
  // A rank that arrives late gets the same verdict.
  EXPECT_THAT(run(store, {3}, 4, absl::Seconds(30)), Each(HasSubstr("ranks 1, 3 did not arrive")));
}

// A store in which one key appears at the last moment: the first wait for it reports that it does not exist.
class LateStore : public store::ForwardingStore {
 public:
  LateStore(std::shared_ptr<store::Store> store, std::string key)
      : ForwardingStore(std::move(store)), key_(std::move(key)) {}

 private:
  absl::StatusOr<std::optional<std::string>> do_watch(absl::string_view key,
                                                      std::optional<absl::string_view> last_value,
                                                      absl::Time deadline) override {
    if (key == key_ && !std::exchange(asked_, true)) return std::optional<std::string>();
    return ForwardingStore::do_watch(key, last_value, deadline);
  }

  const std::string key_;
  bool asked_ = false;
};

TEST(Agreement, RankThatArrivesAtTheLastMomentIsNotMissing) {
  const auto store = std::make_shared<store::HashStore>();
  store->set("round/1", "text 1");
  LateStore late(store, "round/1");
  EXPECT_THAT(run(late, {0}, 2, absl::ZeroDuration()), Each("OK"));
}

TEST(Agreement, FirstMissingRankAloneIsNamedOnRequest) {
  store::HashStore store;
  EXPECT_THAT(run(store, {0, 2}, 4, kLate, nullptr, false), Each(HasSubstr("rank 1 did not")));
}

TEST(Agreement, WithoutRankZeroTheOthersNameIt) {
  store::HashStore store;
  EXPECT_THAT(run(store, {1, 2}, 3, kLate), Each(HasSubstr("rank 0 did not arrive")));
}

// One rank of a group, which waits on another thread.
std::future<absl::Status> wait_as(store::Store& store, int rank, int size, RecordedProgress& shown,
                                  HurriedClock& clock, std::function<absl::Status()> interrupted = nullptr) {
  return std::async(std::launch::async, [&store, &shown, &clock, rank, size, interrupted] {
    return agree({.store = store,
                  .key = "round",
                  .rank = rank,
                  .size = size,
                  .deadline = Clock::system().now() + absl::Minutes(1),
                  .interrupted = interrupted,
                  .subject = "process group \"world\"",
                  .progress = {&shown, &clock}},
                 "");
  });
}

TEST(Agreement, WaitNamesTheMissingRanks) {
  for (const bool interruptible : {false, true}) {
    store::HashStore store;
    RecordedProgress shown;
    HurriedClock clock;
    const auto interrupted = [] { return absl::OkStatus(); };
    auto rank_0 = wait_as(store, 0, 4, shown, clock,
                          interruptible ? std::function<absl::Status()>(interrupted) : nullptr);
    shown.wait_for(1);
    EXPECT_THAT(shown.texts(), ElementsAre("process group \"world\": 1 of 4 ranks have arrived, waiting for "
                                           "ranks 1, 2, 3"));
    EXPECT_EQ(shown.states()[0].done, 1);
    EXPECT_EQ(shown.states()[0].total, 4);
    EXPECT_THAT(run(store, {1, 2, 3}, 4, absl::Seconds(30)), Each("OK"));
    EXPECT_EQ(rank_0.get(), absl::OkStatus());
    EXPECT_EQ(shown.texts().back(), "process group \"world\": all ranks have arrived");
  }
}

// Rank 0 has not arrived. Of the others the lowest one reports.
TEST(Agreement, OnlyOneOfTheWaitingRanksReports) {
  store::HashStore store;
  RecordedProgress low, high;
  HurriedClock low_clock, high_clock;
  auto rank_1 = wait_as(store, 1, 3, low, low_clock);
  low.wait_for(1);
  auto rank_2 = wait_as(store, 2, 3, high, high_clock);
  low.wait_for(2);
  EXPECT_THAT(low.texts(),
              ElementsAre("process group \"world\": 1 of 3 ranks have arrived, waiting for ranks 0, 2",
                          "process group \"world\": 2 of 3 ranks have arrived, waiting for rank 0"));
  EXPECT_THAT(run(store, {0}, 3, absl::Seconds(30)), Each("OK"));
  EXPECT_EQ(rank_1.get(), absl::OkStatus());
  EXPECT_EQ(rank_2.get(), absl::OkStatus());
  EXPECT_THAT(high.texts(), IsEmpty());
}

TEST(Agreement, WithoutASubjectNothingIsShown) {
  store::HashStore store;
  RecordedProgress shown;
  HurriedClock clock;
  EXPECT_TRUE(absl::IsDeadlineExceeded(agree({.store = store,
                                              .key = "round",
                                              .size = 2,
                                              .deadline = Clock::system().now() + absl::Milliseconds(300),
                                              .progress = {&shown, &clock}},
                                             "")));
  EXPECT_THAT(shown.texts(), IsEmpty());
}

TEST(Agreement, InterruptionEndsTheWait) {
  store::HashStore store;
  const absl::Status status =
      agree({.store = store,
             .key = "round",
             .rank = 1,
             .size = 2,
             .interrupted = [] { return absl::AbortedError("requested by the test"); }},
            "");
  EXPECT_EQ(status.ToString(), "ABORTED: requested by the test");
}

TEST(Agreement, MalformedVerdictIsInternalError) {
  store::HashStore store;
  store.set("round/verdict", "99 nonsense");
  EXPECT_THAT(run(store, {1}, 2, absl::Seconds(30)), Each(HasSubstr("INTERNAL")));
}

TEST(Agreement, ForgettingLeavesNothing) {
  store::HashStore store;
  run(store, {0, 1, 2}, 3, absl::Seconds(30));
  EXPECT_GT(store.num_keys(), 0);
  forget(store, "round", 3);
  EXPECT_EQ(store.num_keys(), 0);
}

}  // namespace
}  // namespace gradwire::collectives
