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
#include "gtest/gtest.h"

// The part of the conformance tests (store_conformance.h) for append, and for calls with several keys.
namespace gradwire::store {

TEST_P(StoreConformance, AppendMakesTheKeyAndThenMakesItLonger) {
  store_->append("key", "ab");
  connect()->append("key", "");
  connect()->append("key", std::string("\0c", 2));
  EXPECT_EQ(store_->get("key"), std::string("ab\0c", 4));
  EXPECT_EQ(store_->num_keys(), 1);
}

TEST_P(StoreConformance, AppendWakesAWatchWithTheWholeValue) {
  std::shared_ptr<Store> other = connect();
  store_->set("key", "one ");
  std::string seen;
  std::thread watcher([&] { seen = other->watch("key", "one "); });
  store_->append("key", "two");
  watcher.join();
  EXPECT_EQ(seen, "one two");
}

TEST_P(StoreConformance, AppendsOfManyThreadsAllCount) {
  constexpr int kThreads = 4, kAppends = 10;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([store = t % 2 == 0 ? store_ : connect()] {
      for (int i = 0; i < kAppends; ++i) store->append("key", "x");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->get("key"), std::string(kThreads * kAppends, 'x'));
}

TEST_P(StoreConformance, CheckDoesNotWait) {
  EXPECT_TRUE(store_->check({}));
  EXPECT_FALSE(store_->check({"a"}));
  store_->set("a", "");
  EXPECT_TRUE(connect()->check({"a"}));
  EXPECT_FALSE(store_->check({"a", "b"}));
  store_->set("b", "");
  EXPECT_TRUE(store_->check({"a", "b", "a"}));
  store_->delete_key("a");
  EXPECT_FALSE(store_->check({"a", "b"}));
}

TEST_P(StoreConformance, MultiSetSetsAllAndMultiGetReturnsThemInOrder) {
  connect()->multi_set({"a", "b", "c"}, {"1", "", std::string("\0", 1)});
  EXPECT_EQ(store_->num_keys(), 3);
  EXPECT_EQ(store_->multi_get({"c", "a", "b", "a"}),
            (std::vector<std::string>{std::string("\0", 1), "1", "", "1"}));
  store_->multi_set({"a", "d"}, {"new", "4"});
  EXPECT_EQ(connect()->multi_get({"a", "d"}), (std::vector<std::string>{"new", "4"}));
  store_->multi_set({}, {});
  EXPECT_TRUE(store_->multi_get({}).empty());
}

TEST_P(StoreConformance, MultiSetOfListsOfDifferentLengthsIsInvalid) {
  EXPECT_TRUE(absl::IsInvalidArgument(status_of([&] { store_->multi_set({"a", "b"}, {"1"}); })));
  EXPECT_EQ(store_->num_keys(), 0);
}

TEST_P(StoreConformance, MultiGetWaitsForTheLastKey) {
  std::shared_ptr<Store> other = connect();
  std::vector<std::string> got;
  std::thread reader([&] { got = other->multi_get({"a", "b"}); });
  store_->set("a", "1");
  store_->multi_set({"b", "c"}, {"2", "3"});
  reader.join();
  EXPECT_EQ(got, (std::vector<std::string>{"1", "2"}));
}

TEST_P(StoreConformance, MultiGetThatRunsOutNamesTheMissingKeys) {
  store_->set("there", "");
  const absl::Status status = store_->try_multi_get({"there", "absent"}, absl::Milliseconds(30)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(is_wait_timeout(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("absent\""));
  EXPECT_THAT(std::string(status.message()), testing::Not(testing::HasSubstr("there\"")));
}

TEST_P(StoreConformance, CallsWithTooManyKeysAreRefused) {
  const std::vector<std::string> keys(kMaxKeysPerWait + 1, "k");
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_check(keys).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_multi_get(keys).status()));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_multi_set(keys, keys)));
}

TEST_P(StoreConformance, MultiSetOverTheLimitIsRefusedAndSetsNothing) {
  const std::string half(kMaxMultiBytes / 2 + 1, 'v');
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_multi_set({"a", "b"}, {half, half})));
  EXPECT_EQ(store_->num_keys(), 0);
}

TEST_P(StoreConformance, ListKeysNamesTheKeysInOrder) {
  EXPECT_TRUE(store_->list_keys().empty());
  for (const char* key : {"b/1", "a", "a/2", "ab", "a/1"}) store_->set(key, "");
  EXPECT_EQ(connect()->list_keys(), (std::vector<std::string>{"a", "a/1", "a/2", "ab", "b/1"}));
  EXPECT_EQ(*store_->try_list_keys_under("a/"), (std::vector<std::string>{"a/1", "a/2"}));
  EXPECT_TRUE(store_->try_list_keys_under("c")->empty());
  store_->delete_key("a");
  EXPECT_EQ(store_->list_keys().size(), 4);
}

TEST_P(StoreConformance, CloneSharesTheTableAndHasATimeoutOfItsOwn) {
  store_->set("key", "value");
  store_->set_timeout(absl::Seconds(31));
  std::shared_ptr<Store> copy = store_->clone();
  EXPECT_EQ(copy->timeout(), absl::Seconds(31));
  EXPECT_EQ(copy->get("key"), "value");
  EXPECT_EQ(copy->list_keys(), store_->list_keys());
  copy->set_timeout(kTimeout);
  EXPECT_EQ(store_->timeout(), absl::Seconds(31));
  store_->set_timeout(kTimeout);
  std::string got;
  std::thread waiter([&] { got = copy->get("late"); });
  store_->set("late", "here");
  waiter.join();
  EXPECT_EQ(got, "here");
  store_.reset();
  EXPECT_EQ(copy->add("number", 2), 2);
}

}  // namespace gradwire::store
