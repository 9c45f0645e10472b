#include "gradwire/tools/launch/arrivals/arrival_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/testing/eventually.h"
#include "gradwire/base/testing/recorded_progress.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/init/init_method.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Meeting read(store::Store& store, int world_size = 4, int64_t round = 2) {
  absl::StatusOr<Meeting> meeting = read_meeting(store, round, world_size, absl::Seconds(30));
  EXPECT_TRUE(meeting.ok()) << meeting.status();
  return *std::move(meeting);
}

// As a worker that has come to the group `name` of round 2, and waits.
void arrive(store::Store& store, int rank, int world_size = 4, const std::string& name = "rpc") {
  const std::string group = absl::StrCat("round_2/rendezvous/", name, "/0");
  store.set(group + "/world_size", absl::StrCat(world_size));
  store.set(absl::StrCat(group, "/waiting/", rank), "waiting");
}

TEST(Meeting, NobodyHasCome) {
  store::HashStore store;
  EXPECT_EQ(read(store).state, Meeting::State::kNone);
  // Keys of programs, of PyTorch and of other rounds are not those of a meeting.
  store.set("round_2/rendezvous/waiting", "x");
  store.set("round_2/rendezvous/rpc/0/waiting/one", "x");
  store.set("round_2/rendezvous/rpc/0/waiting/-1", "x");
  store.set("round_2/rendezvous/rpc/0/waiting/4", "x");
  store.set("round_2/rendezvous/rpc/0/world_size", "4");
  store.set("round_1/rendezvous/rpc/0/waiting/1", "x");
  store.set("round_1/rendezvous/rpc/0/world_size", "4");
  EXPECT_EQ(read(store).state, Meeting::State::kNone);
}

TEST(Meeting, RanksThatWaitHaveArrived) {
  store::HashStore store;
  arrive(store, 3);
  arrive(store, 0);
  EXPECT_EQ(read(store).state, Meeting::State::kGoingOn);
  EXPECT_THAT(read(store).arrived, ElementsAre(0, 3));
  store.set("round_2/rendezvous/rpc/0/result", "");
  EXPECT_EQ(read(store).state, Meeting::State::kOver);
}

TEST(Meeting, GroupOfSomeWorkersIsIgnored) {
  store::HashStore store;
  arrive(store, 1, /*world_size=*/2, "pair");
  EXPECT_EQ(read(store).state, Meeting::State::kNone);
  arrive(store, 2, 4, "a");
  arrive(store, 1, 4, "b");
  arrive(store, 3, 4, "b");
  EXPECT_THAT(read(store).arrived, ElementsAre(1, 3));
}

// The keys are those that workers write.
TEST(Meeting, FollowsAFormation) {
  const auto store = std::make_shared<store::HashStore>();
  const auto of_round = std::make_shared<store::PrefixStore>("round_2", store);
  const auto join = [&](int rank) {
    return std::async(std::launch::async, [&of_round, rank] {
      return store::rendezvous(of_round, rank, 2, {.timeout = absl::Minutes(1)});
    });
  };
  auto first = join(1);
  EXPECT_TRUE(eventually([&] { return read(*store, 2).state == Meeting::State::kGoingOn; }));
  EXPECT_THAT(read(*store, 2).arrived, ElementsAre(1));
  const absl::StatusOr<store::Rendezvous> second = join(0).get();
  EXPECT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(read(*store, 2).state, Meeting::State::kOver);
}

ArrivalWatch::Options options(const std::shared_ptr<store::Store>& store, RecordedProgress& shown,
                              HurriedClock& clock) {
  return {.open = [store](absl::Duration) { return store; },
          .round = 2,
          .world_size = 4,
          .workers = {{.rank = 2, .local_rank = 0, .pid = 100}, {.rank = 3, .local_rank = 1, .pid = 101}},
          .progress = {&shown, &clock},
          .first = absl::ZeroDuration(),
          .interval = absl::Milliseconds(5),
          .longest = absl::Milliseconds(5)};
}

TEST(ArrivalWatch, NamesTheWorkersOfThisNodeThatAreMissing) {
  const auto store = std::make_shared<store::HashStore>();
  arrive(*store, 2);
  RecordedProgress shown;
  HurriedClock clock(1'000'000);
  ArrivalWatch watch(options(store, shown, clock));
  EXPECT_TRUE(eventually([&] {
    watch.show();
    return !shown.texts().empty();
  }));
  EXPECT_THAT(shown.texts(),
              ElementsAre("1 of 2 workers of this node have come to the job's store; waiting for "
                          "rank 3 (local rank 1, pid 101)"));
  EXPECT_EQ(shown.states()[0].done, 1);
  EXPECT_EQ(shown.states()[0].total, 2);
  // After the meeting there is nothing more to say.
  store->set("round_2/rendezvous/rpc/0/result", "");
  EXPECT_TRUE(eventually([&] { return watch.until_next() == absl::InfiniteDuration(); }));
  watch.show();
  EXPECT_EQ(shown.texts().size(), 1u);
}

TEST(ArrivalWatch, SaysNothingIfAllWorkersOfThisNodeHaveCome) {
  const auto store = std::make_shared<store::HashStore>();
  for (const int rank : {2, 3}) arrive(*store, rank);
  RecordedProgress shown;
  HurriedClock clock(1'000'000);
  ArrivalWatch watch(options(store, shown, clock));
  for (int i = 0; i < 100; ++i) watch.show();
  EXPECT_THAT(shown.texts(), IsEmpty());
}

TEST(ArrivalWatch, SaysNothingIfNoWorkerUsesTheStore) {
  const auto store = std::make_shared<store::HashStore>();
  RecordedProgress shown;
  HurriedClock clock(1'000'000);
  ArrivalWatch watch(options(store, shown, clock));
  for (int i = 0; i < 100; ++i) watch.show();
  EXPECT_THAT(shown.texts(), IsEmpty());
}

TEST(ArrivalWatch, StoreThatCannotBeOpenedIsTriedAgain) {
  const auto store = std::make_shared<store::HashStore>();
  arrive(*store, 2);
  RecordedProgress shown;
  HurriedClock clock(1'000'000);
  ArrivalWatch::Options with_failures = options(store, shown, clock);
  int failures = 3;
  with_failures.open = [&failures, store](absl::Duration) -> absl::StatusOr<std::shared_ptr<store::Store>> {
    if (failures-- > 0) return absl::UnavailableError("not yet");
    return store;
  };
  ArrivalWatch watch(std::move(with_failures));
  EXPECT_TRUE(eventually([&] {
    watch.show();
    return !shown.texts().empty();
  }));
}

// The destructor does not wait for the next question.
TEST(ArrivalWatch, EndsAtOnce) {
  RecordedProgress shown;
  HurriedClock clock;
  ArrivalWatch::Options later = options(std::make_shared<store::HashStore>(), shown, clock);
  later.first = absl::Hours(1);
  ArrivalWatch watch(std::move(later));
}

}  // namespace
}  // namespace gradwire::tools
