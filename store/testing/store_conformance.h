#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/testing/status_of.h"
#include "gradwire/store/interface/limits.h"
#include "gradwire/store/interface/store.h"
#include "gradwire/store/testing/store_kind.h"
#include "gradwire/store/testing/store_many_conformance.h"
#include "gradwire/store/testing/store_queue_conformance.h"
#include "gtest/gtest.h"

// Conformance tests for every kind of Store. The test of a kind instantiates them with
// INSTANTIATE_TEST_SUITE_P and a StoreKind.
namespace gradwire::store {

TEST_P(StoreConformance, GetReturnsWhatAnotherSet) {
  connect()->set("key", "value");
  EXPECT_EQ(store_->get("key"), "value");
  store_->set("key", "other");
  EXPECT_EQ(connect()->get("key"), "other");
}

TEST_P(StoreConformance, EmptyAndBinaryKeysAndValuesSurvive) {
  std::string bytes;
  for (int i = 0; i < 512; ++i) bytes.push_back(static_cast<char>(i));
  store_->set("empty", "");
  store_->set("", "of the empty key");
  store_->set(bytes, bytes);
  std::shared_ptr<Store> other = connect();
  EXPECT_EQ(other->get("empty"), "");
  EXPECT_EQ(other->get(""), "of the empty key");
  EXPECT_EQ(other->get(bytes), bytes);
  EXPECT_EQ(other->num_keys(), 3);
}

TEST_P(StoreConformance, ValueOfOneMebibyteSurvives) {
  std::string value(std::size_t{1} << 20, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 31 >> 3);
  store_->set("large", value);
  EXPECT_TRUE(connect()->get("large") == value);
}

TEST_P(StoreConformance, KeysAndValuesOverTheLimitAreRefused) {
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_set(std::string(kMaxKeyBytes + 1, 'k'), "v")));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_set("k", std::string(kMaxValueBytes + 1, 'v'))));
  EXPECT_EQ(store_->num_keys(), 0);
}

TEST_P(StoreConformance, AddCountsFromNothingAndBelowZero) {
  EXPECT_EQ(store_->add("counter", 5), 5);
  EXPECT_EQ(connect()->add("counter", -7), -2);
  EXPECT_EQ(store_->get("counter"), "-2");
  store_->set("given", "40");
  EXPECT_EQ(store_->add("given", 2), 42);
}

TEST_P(StoreConformance, AddToAValueThatIsNotANumberIsInvalid) {
  store_->set("word", "seven");
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([&] { store_->add("word", 1); })));
  if (!GetParam().checks_sums) return;
  store_->set("full", "9223372036854775807");
  EXPECT_TRUE(absl::IsInvalidArgument(store_->try_add("full", 1).status()));
  EXPECT_EQ(store_->get("full"), "9223372036854775807");
}

TEST_P(StoreConformance, CompareSetSetsOnlyWhatItExpects) {
  EXPECT_EQ(store_->compare_set("key", "something", "new"), "something");
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_EQ(store_->compare_set("key", "", "first"), "first");
  EXPECT_EQ(store_->compare_set("key", "", "second"), "first");
  EXPECT_EQ(store_->compare_set("key", "wrong", "second"), "first");
  EXPECT_EQ(store_->compare_set("key", "first", "second"), "second");
  EXPECT_EQ(connect()->get("key"), "second");
}

TEST_P(StoreConformance, DeleteSaysWhetherTheKeyWasThere) {
  store_->set("a", "1");
  store_->set("b", "2");
  EXPECT_TRUE(connect()->delete_key("a"));
  EXPECT_FALSE(store_->delete_key("a"));
  EXPECT_EQ(store_->num_keys(), 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->try_get("a", absl::ZeroDuration()).status()));
  store_->set("a", "again");
  EXPECT_EQ(store_->get("a"), "again");
}

TEST_P(StoreConformance, NumKeysUnderCountsOnlyThePrefix) {
  for (const char* key : {"a", "a/1", "a/2", "ab", "b/1"}) store_->set(key, "");
  EXPECT_EQ(*store_->try_num_keys_under("a/"), 2);
  EXPECT_EQ(*store_->try_num_keys_under("a"), 4);
  EXPECT_EQ(*store_->try_num_keys_under("c"), 0);
}

TEST_P(StoreConformance, GetIsWokenBySet) {
  std::shared_ptr<Store> other = connect();
  std::string got;
  std::thread waiter([&] { got = other->get("late"); });
  store_->set("unrelated", "");
  store_->set("late", "here");
  waiter.join();
  EXPECT_EQ(got, "here");
}

TEST_P(StoreConformance, WaitReturnsWhenTheLastKeyHasCome) {
  std::shared_ptr<Store> other = connect();
  absl::Status status = absl::UnknownError("not run");
  std::thread waiter([&] { status = other->try_wait({"a", "b", "c", "b"}); });
  store_->set("a", "");
  store_->add("b", 1);
  store_->compare_set("c", "", "x");
  waiter.join();
  EXPECT_TRUE(status.ok()) << status;
  store_->wait({});
  store_->wait({"a"});
}

TEST_P(StoreConformance, WaitThatRunsOutNamesTheMissingKeysAndTheStore) {
  store_->set("there", "");
  const absl::Status status = status_of([&] {
    store_->wait({"there", "missing one", "missing two"}, absl::Milliseconds(30));
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, testing::HasSubstr("missing one"));
  EXPECT_THAT(message, testing::HasSubstr("missing two"));
  EXPECT_THAT(message, testing::Not(testing::HasSubstr("there\"")));
  EXPECT_THAT(message, testing::HasSubstr("Store"));
  EXPECT_THAT(message, testing::ContainsRegex("waited [0-9.m]+s "));
}

TEST_P(StoreConformance, TimeoutOfTheStoreBoundsGet) {
  store_->set_timeout(absl::Milliseconds(20));
  EXPECT_EQ(store_->timeout(), absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status_of([&] { store_->get("never"); })));
  // A zero timeout does not affect a call that need not wait.
  store_->set_timeout(absl::ZeroDuration());
  store_->set("key", "value");
  EXPECT_EQ(store_->get("key"), "value");
}

TEST_P(StoreConformance, WatchReturnsTheNextValue) {
  store_->set("key", "one");
  EXPECT_EQ(store_->watch("key", "zero"), "one");
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->try_watch("key", "one", absl::Milliseconds(20)).status()));
  std::shared_ptr<Store> other = connect();
  std::string seen;
  std::thread watcher([&] { seen = other->watch("key", "one"); });
  store_->set("key", "one");
  store_->set("key", "two");
  watcher.join();
  EXPECT_EQ(seen, "two");
}

TEST_P(StoreConformance, WatchWaitsForAKeyThatIsMissing) {
  std::shared_ptr<Store> other = connect();
  std::string seen;
  std::thread watcher([&] { seen = other->watch("key", ""); });
  store_->set("key", "");
  store_->delete_key("key");
  store_->set("key", "full");
  watcher.join();
  EXPECT_EQ(seen, "full");
}

TEST_P(StoreConformance, AddsOfManyThreadsAllCount) {
  constexpr int kThreads = 8, kAdds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    // Half of them share a store object.
    threads.emplace_back([store = t % 2 == 0 ? store_ : connect()] {
      for (int i = 0; i < kAdds; ++i) store->add("counter", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->add("counter", 0), kThreads * kAdds);
}

TEST_P(StoreConformance, OneOfManyCompareSetsWins) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 5; ++round) {
    const std::string key = absl::StrCat("lock", round);
    std::vector<std::string> seen(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&seen, key, t, store = t % 2 == 0 ? store_ : connect()] {
        seen[t] = store->compare_set(key, "", absl::StrCat("thread ", t));
      });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    for (int t = 0; t < kThreads; ++t) {
      EXPECT_EQ(seen[t], seen[0]);
      winners += seen[t] == absl::StrCat("thread ", t);
    }
    EXPECT_EQ(winners, 1);
  }
}

TEST_P(StoreConformance, ManyWaitersAreAllWoken) {
  constexpr int kWaiters = 16;
  std::vector<std::string> got(kWaiters);
  std::vector<std::thread> threads;
  for (int t = 0; t < kWaiters; ++t) {
    threads.emplace_back([&, t] {
      store_->add("arrived", 1);
      got[t] = store_->get("go");
    });
  }
  for (std::string arrived = "0"; arrived != absl::StrCat(kWaiters);)
    arrived = store_->watch("arrived", arrived);
  store_->set("go", "gone");
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(got, testing::Each("gone"));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(StoreConformance);

}  // namespace gradwire::store
