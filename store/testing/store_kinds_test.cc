#include <filesystem>

#include "gradwire/base/random_id.h"
#include "gradwire/store/file_store.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/store/prefix_store.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/store/testing/store_conformance.h"

namespace gradwire::store {
namespace {

class HashFixture : public StoreFixture {
 public:
  ~HashFixture() override { EXPECT_EQ(store_->waiting(), 0u); }
  std::shared_ptr<Store> connect() override { return store_; }

 private:
  const std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
};

class FileFixture : public StoreFixture {
 public:
  ~FileFixture() override { std::filesystem::remove(path_); }
  std::shared_ptr<Store> connect() override { return std::make_shared<FileStore>(path_); }

 private:
  const std::string path_ = absl::StrCat(testing::TempDir(), "/store-", random_id());
};

class TcpFixture : public StoreFixture {
 public:
  std::shared_ptr<Store> connect() override {
    return std::make_shared<TcpStore>("localhost", master_.port());
  }

 private:
  TcpStore master_{"localhost", 0, {.is_master = true}};
};

class PrefixFixture : public StoreFixture {
 public:
  explicit PrefixFixture(std::unique_ptr<StoreFixture> below) : below_(std::move(below)) {
    // Keys of other users of the same store must not be seen.
    below_->connect()->set("outside", "x");
    below_->connect()->set("inside", "x");
  }
  std::shared_ptr<Store> connect() override {
    return std::make_shared<PrefixStore>("inside", below_->connect());
  }

 private:
  const std::unique_ptr<StoreFixture> below_;
};

template <class Fixture>
std::unique_ptr<StoreFixture> make() {
  return std::make_unique<Fixture>();
}

template <class Fixture>
std::unique_ptr<StoreFixture> make_prefixed() {
  return std::make_unique<PrefixFixture>(std::make_unique<Fixture>());
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreConformance,
                         testing::Values(StoreKind{"Hash", make<HashFixture>},
                                         StoreKind{"File", make<FileFixture>},
                                         StoreKind{"Tcp", make<TcpFixture>},
                                         StoreKind{"PrefixOverHash", make_prefixed<HashFixture>},
                                         StoreKind{"PrefixOverFile", make_prefixed<FileFixture>},
                                         StoreKind{"PrefixOverTcp", make_prefixed<TcpFixture>}),
                         [](const testing::TestParamInfo<StoreKind>& info) { return info.param.name; });

}  // namespace
}  // namespace gradwire::store
