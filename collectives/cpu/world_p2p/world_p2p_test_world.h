#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/collectives/cpu/p2p/p2p_test_messages.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

// Helpers for the tests of WorldP2p.
namespace gradwire::collectives::cpu {

inline constexpr uint64_t kChannel = 3;

// A world whose ranks are all in this process.
class World {
 public:
  World(int size, std::vector<std::string> transports, std::size_t eager_bytes = kEager)
      : store(std::make_shared<store::HashStore>()) {
    for (int rank = 0; rank < size; ++rank) ends.push_back(make(rank, size, transports, eager_bytes));
  }

  std::shared_ptr<WorldP2p> make(int rank, int size, std::vector<std::string> transports,
                                 std::size_t eager_bytes) {
    WorldP2p::Options options;
    options.rank = rank;
    options.size = size;
    options.store = store;
    options.transports = std::move(transports);
    options.eager_bytes = eager_bytes;
    absl::StatusOr<std::shared_ptr<WorldP2p>> p2p = WorldP2p::create(std::move(options));
    EXPECT_TRUE(p2p.ok()) << p2p.status();
    return p2p.ok() ? *p2p : nullptr;
  }
  WorldP2p& operator[](int rank) { return *ends[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<store::Store> store;
  std::vector<std::shared_ptr<WorldP2p>> ends;
};

// Runs over each transport, and checks that no descriptors and threads are left.
class WorldP2pTest : public testing::TestWithParam<std::string> {
 protected:
  void TearDown() override { EXPECT_EQ(before_.left(), ""); }
  std::vector<std::string> transports() const {
    return GetParam() == "default" ? std::vector<std::string>{} : std::vector<std::string>{GetParam()};
  }

 private:
  transport::ProcessCounts before_;
};

}  // namespace gradwire::collectives::cpu
