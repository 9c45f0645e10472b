// Clients of Gradwire at a server of PyTorch's TCPStore, as libtorch has it: the conformance tests of every
// store, and the operations together with PyTorch's clients.

#include <chrono>
#include <future>
#include <memory>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/testing/store_conformance.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using TorchTcpStorePtr = c10::intrusive_ptr<c10d::TCPStore>;

std::string text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

TorchTcpStorePtr torch_master(bool libuv, std::optional<std::size_t> workers = std::nullopt, int port = 0) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.numWorkers = workers;
  options.useLibUV = libuv;
  options.timeout = std::chrono::seconds(60);
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

class TorchFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> connect() override {
    return std::make_shared<TcpStore>("localhost", master_->getPort());
  }

 private:
  const TorchTcpStorePtr master_ = torch_master(/*libuv=*/true);
};

class PrefixOverTorchFixture : public TorchFixture {
 public:
  std::shared_ptr<Store> connect() override {
    return std::make_shared<PrefixStore>("inside", TorchFixture::connect());
  }
};

INSTANTIATE_TEST_SUITE_P(
    Torch, StoreConformance,
    ::testing::Values(StoreKind{.name = "Torch",
                                .make = [] { return std::make_unique<TorchFixture>(); },
                                .checks_sums = false},
                      StoreKind{.name = "PrefixOverTorch",
                                .make = [] { return std::make_unique<PrefixOverTorchFixture>(); },
                                .checks_sums = false}),
    [](const ::testing::TestParamInfo<StoreKind>& info) { return info.param.name; });

// The parameter: whether the server uses libuv.
class TorchServer : public ::testing::TestWithParam<bool> {
 protected:
  std::shared_ptr<TcpStore> connect() { return std::make_shared<TcpStore>("localhost", master_->getPort()); }

  TorchTcpStorePtr master_ = torch_master(GetParam());
};

TEST_P(TorchServer, BothKindsOfClientsSeeTheSameKeys) {
  const std::shared_ptr<TcpStore> own = connect();
  own->set("a", "own");
  EXPECT_EQ(text(master_->get("a")), "own");
  static_cast<c10d::Store&>(*master_).set("b", "theirs");
  EXPECT_EQ(own->get("b"), "theirs");
  EXPECT_EQ(own->add("n", 3), 3);
  EXPECT_EQ(master_->add("n", 4), 7);
  EXPECT_EQ(own->compare_set("c", "", "first"), "first");
  EXPECT_EQ(own->compare_set("c", "x", "second"), "first");
  own->append("a", "!");
  own->multi_set({"m1", "m2"}, {"1", ""});
  EXPECT_THAT(own->multi_get({"m2", "a", "m1"}), ElementsAre("", "own!", "1"));
  EXPECT_TRUE(own->check({"a", "m2"}));
  EXPECT_FALSE(own->check({"a", "none"}));
  EXPECT_THAT(own->list_keys(), ElementsAre("a", "b", "c", "m1", "m2", "n"));
  EXPECT_EQ(own->num_keys(), 6);
  EXPECT_TRUE(own->delete_key("a"));
  EXPECT_FALSE(own->delete_key("a"));
}

TEST_P(TorchServer, WaitsEndWithTheKeyOrTheTimeout) {
  const std::shared_ptr<TcpStore> own = connect();
  auto getting = std::async(std::launch::async, [&] { return own->get("late"); });
  auto waiting = std::async(std::launch::async, [&] { return own->try_wait({"late", "later"}); });
  static_cast<c10d::Store&>(*master_).set("late", "here");
  static_cast<c10d::Store&>(*master_).set("later", "");
  EXPECT_EQ(getting.get(), "here");
  EXPECT_TRUE(waiting.get().ok());
  const absl::Status status = own->try_wait({"late", "never"}, absl::Milliseconds(30));
  EXPECT_TRUE(is_wait_timeout(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"never\""));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("\"late\"")));
  EXPECT_EQ(own->get("late"), "here");
}

TEST_P(TorchServer, QueuesNeedLibuv) {
  const std::shared_ptr<TcpStore> own = connect();
  if (GetParam()) {
    own->queue_push("q", "item");
    EXPECT_EQ(own->queue_len("q"), 1);
    EXPECT_EQ(text(master_->queuePop("q", true)), "item");
    EXPECT_TRUE(is_wait_timeout(own->try_queue_pop("q", absl::Milliseconds(20)).status()));
    return;
  }
  for (const absl::Status& status : {own->try_queue_push("q", "item"), own->try_queue_len("q").status(),
                                     own->try_queue_pop("q", absl::ZeroDuration()).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("use_libuv"));
  }
  own->set("after", "all");
  EXPECT_EQ(own->get("after"), "all");
}

TEST_P(TorchServer, LimitsOfPyTorchAreNamed) {
  const std::shared_ptr<TcpStore> own = connect();
  own->set(std::string(8191, 'k'), std::string(std::size_t{8} << 20, 'v'));
  EXPECT_EQ(own->num_keys(), 1);
  EXPECT_TRUE(absl::IsResourceExhausted(own->try_set(std::string(8192, 'k'), "v")));
  const absl::Status status = own->try_set("k", std::string((std::size_t{8} << 20) + 1, 'v'));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("PyTorch"));
  EXPECT_EQ(own->num_keys(), 1);
}

TEST_P(TorchServer, ServerThatEndsIsUnavailable) {
  const std::shared_ptr<TcpStore> own = connect();
  auto waiting =
      std::async(std::launch::async, [&] { return own->try_get("never", absl::Seconds(60)).status(); });
  own->set("key", "value");
  master_.reset();
  EXPECT_TRUE(absl::IsUnavailable(waiting.get()));
  const absl::Status status = own->try_get("key").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("TcpStore at localhost:"));
}

TEST_P(TorchServer, MasterOfPyTorchWaitsForTheWorkersOfGradwire) {
  const int port = free_port();
  auto master = std::async(std::launch::async, [port] { return torch_master(GetParam(), 3, port); });
  std::vector<std::shared_ptr<TcpStore>> workers;
  for (int i = 0; i < 2; ++i) {
    // The master may start later.
    workers.push_back(std::make_shared<TcpStore>("localhost", port, TcpStoreOptions{.world_size = 3}));
  }
  const TorchTcpStorePtr joined = master.get();
  workers[0]->set("key", "value");
  EXPECT_EQ(text(joined->get("key")), "value");
  // The key that counts the workers is not a user's.
  EXPECT_EQ(workers[1]->num_keys(), 1);
  EXPECT_THAT(workers[1]->list_keys(), ElementsAre("key"));
}

TEST_P(TorchServer, ManyClientsCountAndMeet) {
  // A server without libuv asks the name service for the name of each client, one after the other, which
  // takes seconds for each on a machine that has none.
  const int count = GetParam() ? 64 : 4;
  std::vector<std::future<int64_t>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::async(std::launch::async, [this, count] {
      const std::shared_ptr<TcpStore> store = connect();
      if (store->add("arrived", 1) == count) store->set("all", "");
      store->wait({"all"});
      return store->add("arrived", 0);
    }));
  }
  for (std::future<int64_t>& each : clients) EXPECT_EQ(each.get(), count);
}

INSTANTIATE_TEST_SUITE_P(Servers, TorchServer, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "Libuv" : "Legacy";
                         });

}  // namespace
}  // namespace gradwire::store
