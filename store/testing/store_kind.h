#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "gradwire/store/interface/store.h"
#include "gtest/gtest.h"

// Describes a kind of store to the conformance tests of stores (store_conformance.h).
namespace gradwire::store {

// Makes several Store objects that share one table, as several processes would have them.
class StoreFixture {
 public:
  virtual ~StoreFixture() = default;
  virtual std::shared_ptr<Store> connect() = 0;
};

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<StoreFixture>()> make;
  // Whether wait() and check() accept a queue in place of a key.
  bool queues_are_keys = true;
  // Whether add() refuses a sum that does not fit 64 bits.
  bool checks_sums = true;
  // Makes GoogleTest's messages show a StoreKind by its name.
  friend void PrintTo(const StoreKind& kind, std::ostream* stream) { *stream << kind.name; }
};

class StoreConformance : public testing::TestWithParam<StoreKind> {
 protected:
  // Long enough for a loaded machine; a test that reaches it fails.
  static constexpr absl::Duration kTimeout = absl::Seconds(60);

  std::shared_ptr<Store> connect() {
    std::shared_ptr<Store> store = fixture_->connect();
    store->set_timeout(kTimeout);
    return store;
  }

  std::unique_ptr<StoreFixture> fixture_ = GetParam().make();
  std::shared_ptr<Store> store_ = connect();
};

}  // namespace gradwire::store
