// FileStore beside the FileStore of libtorch: the same operations, the same jobs. The formats of the files
// differ, so each has a file of its own.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gradwire/base/random_id.h"
#include "gradwire/store/file_store.h"
#include "gtest/gtest.h"

namespace gradwire::store {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

// A store of one of the two libraries. The methods are those of Store.
class AnyStore {
 public:
  virtual ~AnyStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;
  virtual int64_t add(const std::string& key, int64_t n) = 0;
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;
  virtual void append(const std::string& key, const std::string& value) = 0;
  virtual bool delete_key(const std::string& key) = 0;
  virtual int64_t num_keys() = 0;
  virtual bool check(const std::vector<std::string>& keys) = 0;
  virtual std::vector<std::string> multi_get(const std::vector<std::string>& keys) = 0;
  virtual void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) = 0;
  // Returns whether the keys have appeared within the time.
  virtual bool wait(const std::vector<std::string>& keys, int64_t milliseconds) = 0;
  virtual std::unique_ptr<AnyStore> clone() = 0;
};

class TorchStore : public AnyStore {
 public:
  explicit TorchStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, to_bytes(value)); }
  std::string get(const std::string& key) override { return to_text(store_->get(key)); }
  int64_t add(const std::string& key, int64_t n) override { return store_->add(key, n); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return to_text(store_->compareSet(key, to_bytes(expected), to_bytes(desired)));
  }
  void append(const std::string& key, const std::string& value) override {
    store_->append(key, to_bytes(value));
  }
  bool delete_key(const std::string& key) override { return store_->deleteKey(key); }
  int64_t num_keys() override { return store_->getNumKeys(); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    std::vector<std::string> values;
    for (const std::vector<uint8_t>& value : store_->multiGet(keys)) values.push_back(to_text(value));
    return values;
  }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    std::vector<std::vector<uint8_t>> all;
    for (const std::string& value : values) all.push_back(to_bytes(value));
    store_->multiSet(keys, all);
  }
  bool wait(const std::vector<std::string>& keys, int64_t milliseconds) override {
    try {
      store_->wait(keys, std::chrono::milliseconds(milliseconds));
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }
  std::unique_ptr<AnyStore> clone() override { return std::make_unique<TorchStore>(store_->clone()); }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

class OwnStore : public AnyStore {
 public:
  explicit OwnStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::string get(const std::string& key) override { return store_->get(key); }
  int64_t add(const std::string& key, int64_t n) override { return store_->add(key, n); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return store_->compare_set(key, expected, desired);
  }
  void append(const std::string& key, const std::string& value) override { store_->append(key, value); }
  bool delete_key(const std::string& key) override { return store_->delete_key(key); }
  int64_t num_keys() override { return store_->num_keys(); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys) override {
    return store_->multi_get(keys);
  }
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values) override {
    store_->multi_set(keys, values);
  }
  bool wait(const std::vector<std::string>& keys, int64_t milliseconds) override {
    return store_->try_wait(keys, absl::Milliseconds(milliseconds)).ok();
  }
  std::unique_ptr<AnyStore> clone() override { return std::make_unique<OwnStore>(store_->clone()); }

 private:
  const std::shared_ptr<Store> store_;
};

// The number of workers that says that it is not known.
constexpr int kUnknown = -1;

// The parameter: whether the stores are those of PyTorch.
class BothFileStores : public ::testing::TestWithParam<bool> {
 protected:
  ~BothFileStores() override { std::filesystem::remove(path_); }

  std::unique_ptr<AnyStore> open(int workers = kUnknown) const {
    if (GetParam()) return std::make_unique<TorchStore>(c10::make_intrusive<c10d::FileStore>(path_, workers));
    return std::make_unique<OwnStore>(
        std::make_shared<FileStore>(path_, workers == kUnknown ? std::nullopt : std::optional<int>(workers)));
  }
  bool file_exists() const { return std::filesystem::exists(path_); }
  // Opens the store in a process that dies with it.
  void die_with_store(int workers) const {
    const pid_t child = fork();
    if (child == 0) {
      open(workers).release()->set("key", "stale");
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/both-", random_id());
};

// Each of these tests passes with the stores of both libraries.

TEST_P(BothFileStores, OperationsHaveTheSameResults) {
  const std::unique_ptr<AnyStore> store = open(1);
  store->set("", std::string("\0/\xff", 3));
  EXPECT_EQ(store->get(""), std::string("\0/\xff", 3));
  EXPECT_EQ(store->add("n", 40), 40);
  EXPECT_EQ(store->add("n", 2), 42);
  EXPECT_EQ(store->add("n", -50), -8);
  EXPECT_EQ(store->get("n"), "-8");
  EXPECT_EQ(store->compare_set("c", "x", "y"), "x");
  EXPECT_EQ(store->compare_set("c", "", "first"), "first");
  EXPECT_EQ(store->compare_set("c", "", "second"), "first");
  EXPECT_EQ(store->compare_set("c", "first", "second"), "second");
  store->append("log", "ab");
  store->append("log", "c");
  EXPECT_EQ(store->get("log"), "abc");
  store->multi_set({"a", "b"}, {"1", ""});
  EXPECT_THAT(store->multi_get({"b", "a", "n"}), ElementsAre("", "1", "-8"));
  EXPECT_TRUE(store->check({"a", "n"}));
  EXPECT_FALSE(store->check({"a", "none"}));
  EXPECT_TRUE(store->check({}));
  EXPECT_TRUE(store->wait({"a", "b"}, 60'000));
  EXPECT_FALSE(store->wait({"a", "none"}, 20));
  EXPECT_TRUE(store->delete_key("a"));
  EXPECT_FALSE(store->check({"a"}));
}

TEST_P(BothFileStores, SeveralClientsWaitAndCount) {
  constexpr int kClients = 4;
  constexpr int kAdds = 25;
  std::vector<std::future<std::string>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::async(std::launch::async, [this, i] {
      const std::unique_ptr<AnyStore> store = open(kClients);
      for (int n = 0; n < kAdds; ++n) store->add("sum", 1);
      if (store->add("arrived", 1) == kClients) store->set("all", "");
      EXPECT_TRUE(store->wait({"all"}, 60'000)) << i;
      return store->get("sum");
    }));
  }
  for (std::future<std::string>& each : clients) EXPECT_EQ(each.get(), absl::StrCat(kClients * kAdds));
  EXPECT_FALSE(file_exists());
}

TEST_P(BothFileStores, LastOfAJobRemovesTheFileAndTheNextJobBeginsEmpty) {
  for (int job = 0; job < 3; ++job) {
    std::unique_ptr<AnyStore> first = open(2);
    EXPECT_FALSE(first->check({"key"}));
    first->set("key", absl::StrCat(job));
    const std::unique_ptr<AnyStore> second = open(2);
    EXPECT_EQ(second->get("key"), absl::StrCat(job));
    first.reset();
    EXPECT_TRUE(file_exists());
  }
  EXPECT_FALSE(file_exists());
}

TEST_P(BothFileStores, KeysOfAMemberThatHasClosedBeforeTheOthersOpenAreKept) {
  open(2)->set("key", "value");
  ASSERT_TRUE(file_exists());
  EXPECT_EQ(open(2)->get("key"), "value");
  EXPECT_FALSE(file_exists());
}

TEST_P(BothFileStores, WithoutANumberOfWorkersTheFileStays) {
  open()->set("key", "value");
  ASSERT_TRUE(file_exists());
  EXPECT_EQ(open()->get("key"), "value");
  EXPECT_TRUE(file_exists());
}

TEST_P(BothFileStores, WithZeroWorkersTheLastOneRemovesTheFile) {
  std::unique_ptr<AnyStore> first = open(0), second = open(0);
  first->set("key", "value");
  first.reset();
  EXPECT_EQ(second->get("key"), "value");
  second.reset();
  EXPECT_FALSE(file_exists());
}

TEST_P(BothFileStores, CloneSeesTheSameKeys) {
  const std::unique_ptr<AnyStore> store = open(kUnknown);
  const std::unique_ptr<AnyStore> copy = store->clone();
  copy->set("key", "value");
  EXPECT_EQ(store->get("key"), "value");
}

// The differences, which docs/store.md lists.

TEST_P(BothFileStores, ProcessThatDiedLeavesItsKeysToTheNextJobOnlyInPyTorch) {
  die_with_store(2);
  EXPECT_EQ(open(2)->check({"key"}), GetParam());
  // PyTorch's file still counts the member that died, so nobody removes it.
  open(2).reset();
  EXPECT_EQ(file_exists(), GetParam());
}

TEST_P(BothFileStores, KeysOfTheStoreItselfAreCountedOnlyInPyTorch) {
  const std::unique_ptr<AnyStore> store = open(1);
  store->set("key", "value");
  EXPECT_EQ(store->num_keys(), GetParam() ? 2 : 1);
}

TEST_P(BothFileStores, DeletingAMissingKeyIsTrueOnlyInPyTorch) {
  EXPECT_EQ(open(1)->delete_key("none"), GetParam());
}

TEST_P(BothFileStores, AddWrapsAroundOnlyInPyTorch) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::unique_ptr<AnyStore> store = open(1);
  store->set("n", absl::StrCat(kMost));
  if (GetParam()) {
    EXPECT_EQ(store->add("n", 1), std::numeric_limits<int64_t>::min());
  } else {
    EXPECT_ANY_THROW(store->add("n", 1));
    EXPECT_EQ(store->get("n"), absl::StrCat(kMost));
  }
  store->set("word", "seven");
  EXPECT_ANY_THROW(store->add("word", 1));
}

TEST_P(BothFileStores, CloneIsAMemberOfItsOwnOnlyInPyTorch) {
  std::unique_ptr<AnyStore> store = open(2);
  store->clone().reset();
  store.reset();
  // The clone and the store are two members in PyTorch, and one here.
  EXPECT_EQ(file_exists(), !GetParam());
}

INSTANTIATE_TEST_SUITE_P(Files, BothFileStores, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& info) {
                           return info.param ? "Torch" : "Gradwire";
                         });

TEST(TorchFileStore, FilesOfTheTwoLibrariesDoNotMix) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/mixed-", random_id());
  const auto torch = c10::make_intrusive<c10d::FileStore>(path, 1);
  torch->set("key", to_bytes("value"));
  EXPECT_TRUE(absl::IsInvalidArgument(FileStore::open(path, 1).status()));
  EXPECT_EQ(to_text(torch->get("key")), "value");
  EXPECT_ANY_THROW(torch->queuePush("queue", to_bytes("item")));
}

}  // namespace
}  // namespace gradwire::store
