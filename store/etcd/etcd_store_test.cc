// Tests of an EtcdStore over a real etcd: the conformance tests of every store, and its own.

#include "gradwire/store/etcd_store.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/etcd/etcd_process.h"
#include "gradwire/store/testing/store_conformance.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::HasSubstr;

// One etcd for all tests, started by the first one; each test has a prefix of its own.
EtcdProcess& shared_etcd() {
  static EtcdProcess etcd;
  return etcd;
}

std::string new_prefix() { return absl::StrCat("test", absl::Hex(random_id())); }

class EtcdFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> connect() override {
    return std::make_shared<EtcdStore>(std::vector<std::string>{shared_etcd().endpoint()}, prefix_);
  }

 private:
  const std::string prefix_ = new_prefix();
};

class LeasedFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> connect() override {
    // Keep the stores open: closing a store deletes its keys, and some tests of the suite drop a store early.
    stores_.push_back(std::make_shared<EtcdStore>(std::vector<std::string>{shared_etcd().endpoint()}, prefix_,
                                                  EtcdStoreOptions{.lease_ttl = absl::Seconds(60)}));
    return stores_.back();
  }

 private:
  const std::string prefix_ = new_prefix();
  std::vector<std::shared_ptr<Store>> stores_;
};

std::vector<StoreKind> kinds() {
  // Without etcd no test is instantiated; the tests below report why.
  if (!EtcdProcess::available().ok()) return {};
  return {
      StoreKind{
          .name = "Etcd", .make = [] { return std::make_unique<EtcdFixture>(); }, .queues_are_keys = false},
      StoreKind{.name = "EtcdLeased",
                .make = [] { return std::make_unique<LeasedFixture>(); },
                .queues_are_keys = false}};
}

INSTANTIATE_TEST_SUITE_P(Etcd, StoreConformance, ::testing::ValuesIn(kinds()),
                         [](const ::testing::TestParamInfo<StoreKind>& info) { return info.param.name; });

class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override { GRADWIRE_NEED_ETCD(); }

  std::shared_ptr<EtcdStore> connect(EtcdStoreOptions options = {.timeout = absl::Seconds(60)}) {
    return std::make_shared<EtcdStore>(std::vector<std::string>{shared_etcd().endpoint()}, prefix_, options);
  }
  int64_t count_all() {
    const auto kv = etcdserverpb::KV::NewStub(shared_etcd().channel());
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_);
    request.set_range_end(prefix_ + "\xff");
    request.set_count_only(true);
    etcdserverpb::RangeResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(kv->Range(&context, request, &response).ok());
    return response.count();
  }

  const std::string prefix_ = new_prefix();
};

TEST_F(EtcdStoreTest, KeysAreUnderThePrefix) {
  const auto store = connect();
  store->set("key", "value");
  EXPECT_EQ(EtcdStore({shared_etcd().endpoint()}, prefix_ + "/deeper").num_keys(), 0);
  EtcdStore({shared_etcd().endpoint()}, prefix_ + "/deeper").set("key", "other");
  EXPECT_EQ(store->get("deeper/key"), "other");
  EXPECT_EQ(store->num_keys(), 2);
  EXPECT_EQ(EtcdStore({shared_etcd().endpoint()}, prefix_ + "2").num_keys(), 0);
}

TEST_F(EtcdStoreTest, ClosingLeavesOnlyTheKeys) {
  {
    const auto store = connect();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) threads.emplace_back([&] { store->add("counter", 1); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_GT(count_all(), 1);
  }
  EXPECT_EQ(count_all(), 1);
  EXPECT_EQ(connect()->get("counter"), "4");
}

TEST_F(EtcdStoreTest, ClosingALeasedStoreDeletesItsKeys) {
  const auto other = connect();
  {
    const auto store = connect({.lease_ttl = absl::Seconds(60)});
    store->set("mine", "1");
    store->add("counter", 1);
    EXPECT_EQ(other->get("mine"), "1");
    other->set("yours", "");
  }
  EXPECT_EQ(*other->try_num_keys(), 1);
  EXPECT_EQ(other->get("yours"), "");
}

TEST_F(EtcdStoreTest, WaitForMoreKeysThanOneTransactionTakes) {
  const auto store = connect(), other = connect();
  constexpr int kKeys = 350;
  std::vector<std::string> keys;
  for (int i = 0; i < kKeys; ++i) keys.push_back(absl::StrCat("key", i));
  for (int i = 0; i < kKeys - 2; ++i) other->set(keys[i], "");
  EXPECT_THAT(std::string(store->try_wait(keys, absl::ZeroDuration()).message()),
              HasSubstr("\"key348\", \"key349\""));
  absl::Status status = absl::UnknownError("not run");
  std::thread waiter([&] { status = store->try_wait(keys, absl::Seconds(60)); });
  other->set(keys[kKeys - 1], "");
  other->set(keys[kKeys - 2], "");
  waiter.join();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(EtcdStoreTest, StoresRacingOnOneKeyCountEveryAddAndElectOne) {
  constexpr int kAdds = 100;
  std::set<int64_t> sums;
  Mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t, store = connect()] {
      for (int i = 0; i < kAdds; ++i) {
        const int64_t sum = store->add("counter", 1);
        const std::string me = absl::StrCat("store", t);
        const std::string winner = store->compare_set(absl::StrCat("lock", i), "", me);
        MutexLock lock(mutex);
        EXPECT_TRUE(sums.insert(sum).second) << sum;
        EXPECT_TRUE(winner == "store0" || winner == "store1") << winner;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*sums.rbegin(), 2 * kAdds);
}

TEST_F(EtcdStoreTest, ValueOverEtcdsOwnLimitNamesTheFlag) {
  for (const std::size_t size : {1'700'000, 4 << 20}) {
    const absl::Status status = connect()->try_set("key", std::string(size, 'x'));
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--max-request-bytes"));
  }
}

TEST_F(EtcdStoreTest, ShortWaitEndsAtItsDeadline) {
  const auto store = connect();
  // A loaded machine makes some of the rounds slow. Waiting for the minimum time of other calls, a second,
  // would make all rounds slow.
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < 10; ++i) {
    const absl::Time start = absl::Now();
    EXPECT_TRUE(absl::IsDeadlineExceeded(store->try_watch("key", "", absl::Milliseconds(50)).status()));
    EXPECT_TRUE(absl::IsDeadlineExceeded(store->try_wait({"key"}, absl::Milliseconds(50))));
    fastest = std::min(fastest, absl::Now() - start);
  }
  EXPECT_LT(fastest, absl::Milliseconds(900));
}

TEST_F(EtcdStoreTest, ClosingLeavesNoThreadAndNoDescriptor) {
  // The first store starts gRPC's own threads, which stay.
  const auto use = [&] {
    const auto store = connect({.lease_ttl = absl::Seconds(60)});
    std::string got;
    std::thread getter([&] { got = store->get("key"); });
    connect()->set("key", "value");
    getter.join();
    const absl::Status late = store->try_watch("key", "value", absl::Milliseconds(20)).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  };
  use();
  const int descriptors = transport::count_descriptors();
  const int threads = transport::count_threads();
  constexpr int kTimes = 20;
  for (int i = 0; i < kTimes; ++i) use();
  // gRPC closes a connection in a thread of its own, and keeps some threads for a while.
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (transport::count_descriptors() > descriptors && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_LE(transport::count_descriptors(), descriptors);
  EXPECT_LT(transport::count_threads(), threads + kTimes / 2);
}

}  // namespace
}  // namespace gradwire::store
