// Clients of PyTorch's TCPStore, as libtorch has them, at the server of a TcpStore, together with clients of
// Gradwire.

#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gradwire/base/error.h"
#include "gradwire/base/free_port.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/tcp_store_server.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using TorchStorePtr = c10::intrusive_ptr<c10d::Store>;

std::vector<uint8_t> bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// The parameter: whether the clients of PyTorch use libuv.
class TorchClient : public ::testing::TestWithParam<bool> {
 protected:
  TorchStorePtr torch(std::optional<std::size_t> workers = std::nullopt) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(server_->port());
    options.numWorkers = workers;
    options.useLibUV = GetParam();
    options.timeout = std::chrono::seconds(60);
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  std::shared_ptr<TcpStore> gradwire() { return std::make_shared<TcpStore>("localhost", server_->port()); }

  std::unique_ptr<TcpStoreServer> server_ = value_or_throw(TcpStoreServer::start({.host = "localhost"}));
};

// The kernel says that the client is a process of the same user on this host.
TEST_P(TorchClient, WithoutAProofClientOfTheSameUserIsServed) {
  server_ =
      value_or_throw(TcpStoreServer::start({.host = "localhost", .allow_unauthenticated_pytorch = false}));
  const TorchStorePtr torch = this->torch();
  torch->set("key", "value");
  EXPECT_EQ(gradwire()->get("key"), "value");
}

TEST_P(TorchClient, BothKindsOfClientsSeeTheSameKeys) {
  const TorchStorePtr torch = this->torch();
  const std::shared_ptr<TcpStore> own = gradwire();
  torch->set("a", "from torch");
  EXPECT_EQ(own->get("a"), "from torch");
  own->set("b", std::string("\0/\xff", 3));
  EXPECT_EQ(torch->get_to_str("b"), std::string("\0/\xff", 3));
  torch->set("", std::vector<uint8_t>());
  EXPECT_EQ(own->get(""), "");
  EXPECT_EQ(torch->getNumKeys(), 3);
  EXPECT_EQ(own->num_keys(), 3);
  EXPECT_THAT(torch->listKeys(), UnorderedElementsAre("", "a", "b"));
  EXPECT_THAT(own->list_keys(), ElementsAre("", "a", "b"));
  EXPECT_TRUE(torch->deleteKey("b"));
  EXPECT_FALSE(own->delete_key("b"));
  EXPECT_FALSE(torch->deleteKey("b"));
}

TEST_P(TorchClient, EveryCallHasTheMeaningThatItHasInPyTorch) {
  const TorchStorePtr torch = this->torch();
  const std::shared_ptr<TcpStore> own = gradwire();
  EXPECT_EQ(torch->add("n", 40), 40);
  EXPECT_EQ(own->add("n", 2), 42);
  EXPECT_EQ(torch->add("n", -50), -8);
  EXPECT_EQ(torch->compareSet("c", "x", "y"), "x");
  EXPECT_EQ(torch->compareSet("c", "", "first"), "first");
  EXPECT_EQ(torch->compareSet("c", "", "second"), "first");
  EXPECT_EQ(own->compare_set("c", "first", "second"), "second");
  torch->append("log", bytes("ab"));
  own->append("log", "cd");
  torch->append("log", bytes("e"));
  EXPECT_EQ(own->get("log"), "abcde");
  EXPECT_TRUE(torch->check({"n", "c"}));
  EXPECT_FALSE(torch->check({"n", "none"}));
  EXPECT_TRUE(torch->check({}));
  torch->multiSet({"m1", "m2"}, {bytes("1"), bytes("")});
  EXPECT_THAT(own->multi_get({"m2", "m1"}), ElementsAre("", "1"));
  own->multi_set({"m1", "m3"}, {"new", "3"});
  const std::vector<std::vector<uint8_t>> values = torch->multiGet({"m3", "m1", "m2"});
  ASSERT_EQ(values.size(), 3);
  EXPECT_EQ(text_of(values[0]) + "," + text_of(values[1]) + "," + text_of(values[2]), "3,new,");
}

TEST_P(TorchClient, WaitsEndWithTheKeyOrTheTimeout) {
  const TorchStorePtr torch = this->torch(), other = this->torch();
  const std::shared_ptr<TcpStore> own = gradwire();
  auto waiting = std::async(std::launch::async, [&] { other->wait({"x", "y"}); });
  auto getting = std::async(std::launch::async, [&] { return own->get("z"); });
  own->set("x", "");
  torch->set("y", "");
  torch->set("z", "here");
  waiting.get();
  EXPECT_EQ(getting.get(), "here");
  torch->wait({});
  EXPECT_ANY_THROW(torch->wait({"x", "never"}, std::chrono::milliseconds(30)));
  EXPECT_EQ(server_->num_waiters(), 0);
  // The connection goes on after the cancelled wait.
  EXPECT_EQ(torch->get_to_str("z"), "here");
  torch->setTimeout(std::chrono::milliseconds(30));
  EXPECT_ANY_THROW(torch->get("never"));
  EXPECT_EQ(torch->get_to_str("z"), "here");
}

TEST_P(TorchClient, QueuesOfBothKindsOfClientsAreTheSame) {
  // PyTorch's clients without libuv refuse queues themselves.
  if (!GetParam()) return;
  const TorchStorePtr torch = this->torch(), other = this->torch();
  const std::shared_ptr<TcpStore> own = gradwire();
  torch->queuePush("q", bytes("one"));
  own->queue_push("q", "two");
  EXPECT_EQ(torch->queueLen("q"), 2);
  EXPECT_EQ(own->queue_pop("q"), "one");
  EXPECT_EQ(text_of(torch->queuePop("q", false)), "two");
  EXPECT_ANY_THROW(torch->queuePop("q", false));
  auto popping = std::async(std::launch::async, [&] { return text_of(other->queuePop("q", true)); });
  own->queue_push("q", "three");
  EXPECT_EQ(popping.get(), "three");
  auto own_popping = std::async(std::launch::async, [&] { return own->queue_pop("q"); });
  torch->queuePush("q", bytes("four"));
  EXPECT_EQ(own_popping.get(), "four");
  EXPECT_EQ(torch->getNumKeys(), 0);
}

// PyTorch's client waits for the queue and then pops in two calls. If another client takes the item between
// them, it throws, and its user pops again.
std::string pop(c10d::Store& store) {
  while (true) {
    try {
      return text_of(store.queuePop("q", true));
    } catch (const c10::Error& error) {
      if (!absl::StrContains(error.what_without_backtrace(), "queue is empty")) throw;
    }
  }
}

TEST_P(TorchClient, EachItemGoesToOneOfTheClientsThatPop) {
  if (!GetParam()) return;
  constexpr int kPoppers = 6;
  std::vector<std::future<std::string>> popping;
  for (int i = 0; i < kPoppers; ++i) {
    popping.push_back(std::async(std::launch::async, [store = torch()] { return pop(*store); }));
  }
  const std::shared_ptr<TcpStore> own = gradwire();
  std::vector<std::string> expected, got;
  for (int i = 0; i < kPoppers; ++i) own->queue_push("q", expected.emplace_back(absl::StrCat("item", i)));
  for (std::future<std::string>& each : popping) got.push_back(each.get());
  EXPECT_THAT(got, ::testing::UnorderedElementsAreArray(expected));
}

TEST_P(TorchClient, PrefixStoresMeetUnderOnePrefix) {
  const auto torch = c10::make_intrusive<c10d::PrefixStore>("job", this->torch());
  PrefixStore own("job", gradwire());
  torch->set("key", bytes("value"));
  EXPECT_EQ(own.get("key"), "value");
  EXPECT_EQ(own.num_keys(), 1);
  EXPECT_THAT(torch->listKeys(), ElementsAre("key"));
  auto waiting = std::async(std::launch::async, [&] { return text_of(torch->get("late")); });
  own.set("late", "here");
  EXPECT_EQ(waiting.get(), "here");
}

TEST_P(TorchClient, LargeValuesAndManyKeysArrive) {
  const TorchStorePtr torch = this->torch();
  const std::shared_ptr<TcpStore> own = gradwire();
  std::string large(std::size_t{20} << 20, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 31 >> 3);
  torch->set("large", large);
  EXPECT_TRUE(own->get("large") == large);
  EXPECT_TRUE(torch->get_to_str("large") == large);
  std::vector<std::string> keys;
  std::vector<std::vector<uint8_t>> values;
  for (int i = 0; i < 5'000; ++i) {
    keys.push_back(absl::StrCat("key", i));
    values.push_back(bytes(absl::StrCat(i)));
  }
  torch->multiSet(keys, values);
  EXPECT_TRUE(torch->multiGet(keys) == values);
  EXPECT_EQ(torch->listKeys().size(), 5'001);
}

TEST_P(TorchClient, SixtyFourClientsCountAndMeet) {
  static constexpr int kClients = 64;
  std::vector<std::future<int64_t>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::async(std::launch::async, [this, i] {
      const TorchStorePtr store = torch(kClients);
      store->set(absl::StrCat("rank", i), std::vector<uint8_t>());
      if (store->add("arrived", 1) == kClients) store->set("all", std::vector<uint8_t>());
      store->wait({"all", "rank0", absl::StrCat("rank", kClients - 1)});
      return store->add("arrived", 0);
    }));
  }
  for (std::future<int64_t>& each : clients) EXPECT_EQ(each.get(), kClients);
  EXPECT_EQ(gradwire()->num_keys(), kClients + 2);
}

TEST_P(TorchClient, MasterOfGradwireWaitsForTheWorkersOfPyTorch) {
  const int port = free_port();
  auto master = std::async(std::launch::async, [port] {
    return std::make_shared<TcpStore>("localhost", port, TcpStoreOptions{.world_size = 3, .is_master = true});
  });
  std::vector<std::future<void>> workers;
  for (int i = 0; i < 2; ++i) {
    workers.push_back(std::async(std::launch::async, [port, i] {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(port);
      options.numWorkers = 3;
      options.useLibUV = GetParam();
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)->set(absl::StrCat("worker", i), bytes("x"));
    }));
  }
  const std::shared_ptr<TcpStore> store = master.get();
  store->wait({"worker0", "worker1"});
  for (std::future<void>& each : workers) each.get();
}

TEST_P(TorchClient, CloneIsASecondClient) {
  const TorchStorePtr torch = this->torch();
  torch->set("key", "value");
  EXPECT_EQ(torch->clone()->get_to_str("key"), "value");
}

TEST_P(TorchClient, AddToATextEndsTheConnectionAlone) {
  const TorchStorePtr torch = this->torch(), other = this->torch();
  torch->set("word", "seven");
  EXPECT_ANY_THROW(torch->add("word", 1));
  EXPECT_EQ(other->get_to_str("word"), "seven");
}

INSTANTIATE_TEST_SUITE_P(Clients, TorchClient, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "Libuv" : "Legacy";
                         });

}  // namespace
}  // namespace gradwire::store
