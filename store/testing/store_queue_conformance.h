#pragma once

#include <algorithm>
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

// The part of the conformance tests (store_conformance.h) for queues.
namespace gradwire::store {

TEST_P(StoreConformance, QueueReturnsItsItemsInOrder) {
  store_->queue_push("queue", "one");
  connect()->queue_push("queue", "");
  store_->queue_push("other", "elsewhere");
  EXPECT_EQ(connect()->queue_len("queue"), 2);
  EXPECT_EQ(store_->queue_len("none"), 0);
  EXPECT_EQ(store_->queue_pop("queue"), "one");
  EXPECT_EQ(connect()->queue_pop("queue"), "");
  EXPECT_EQ(store_->queue_len("queue"), 0);
  EXPECT_EQ(store_->queue_pop("other"), "elsewhere");
}

TEST_P(StoreConformance, QueueIsApartFromTheKeyOfItsName) {
  store_->queue_push("name", "item");
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_TRUE(store_->list_keys().empty());
  EXPECT_FALSE(store_->delete_key("name"));
  store_->set("name", "value");
  EXPECT_EQ(store_->queue_len("name"), 1);
  EXPECT_TRUE(store_->delete_key("name"));
  EXPECT_EQ(store_->queue_pop("name"), "item");
}

TEST_P(StoreConformance, QueueWithItemsCountsAsAKeyThatExists) {
  if (!GetParam().queues_are_keys) return;
  std::shared_ptr<Store> other = connect();
  EXPECT_FALSE(store_->check({"name"}));
  absl::Status status = absl::UnknownError("not run");
  std::thread waiter([&] { status = other->try_wait({"name", "key"}); });
  store_->set("key", "");
  store_->queue_push("name", "item");
  waiter.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(store_->check({"name", "key"}));
  store_->queue_pop("name");
  EXPECT_FALSE(store_->check({"name"}));
}

TEST_P(StoreConformance, PopOfAnEmptyQueueRunsOutAndNamesIt) {
  const absl::Status status = store_->try_queue_pop("empty one", absl::ZeroDuration()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_TRUE(is_wait_timeout(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("empty one"));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(status_of([&] { store_->queue_pop("empty one", absl::Milliseconds(30)); })));
  store_->queue_push("empty one", "item");
  EXPECT_EQ(store_->queue_pop("empty one", absl::ZeroDuration()), "item");
}

TEST_P(StoreConformance, PopIsWokenByAPush) {
  std::shared_ptr<Store> other = connect();
  std::string got;
  std::thread popper([&] { got = other->queue_pop("queue"); });
  store_->set("queue", "not an item");
  store_->queue_push("queue", "item");
  popper.join();
  EXPECT_EQ(got, "item");
  EXPECT_EQ(store_->queue_len("queue"), 0);
}

TEST_P(StoreConformance, EachItemGoesToOneOfManyPoppers) {
  constexpr int kPoppers = 6, kItems = 5;
  std::vector<std::vector<std::string>> got(kPoppers);
  std::vector<std::thread> threads;
  for (int t = 0; t < kPoppers; ++t) {
    threads.emplace_back([&, t, store = t % 2 == 0 ? store_ : connect()] {
      for (int i = 0; i < kItems; ++i) got[t].push_back(store->queue_pop("queue"));
    });
  }
  for (int i = 0; i < kPoppers * kItems; ++i) store_->queue_push("queue", absl::StrCat("item", i));
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> all, expected;
  for (const std::vector<std::string>& items : got) all.insert(all.end(), items.begin(), items.end());
  for (int i = 0; i < kPoppers * kItems; ++i) expected.push_back(absl::StrCat("item", i));
  EXPECT_THAT(all, testing::UnorderedElementsAreArray(expected));
  EXPECT_EQ(store_->queue_len("queue"), 0);
}

TEST_P(StoreConformance, ItemsOverTheLimitAreRefused) {
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_queue_push("q", std::string(kMaxValueBytes + 1, 'v'))));
  EXPECT_TRUE(absl::IsResourceExhausted(store_->try_queue_push(std::string(kMaxKeyBytes + 1, 'q'), "")));
  EXPECT_EQ(store_->queue_len("q"), 0);
}

}  // namespace gradwire::store
