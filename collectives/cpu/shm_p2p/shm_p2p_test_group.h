#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/collectives/cpu/p2p/p2p_test_messages.h"
#include "gradwire/collectives/cpu/shm_p2p/shm_p2p.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

// Helpers for the tests of ShmP2p.
namespace gradwire::collectives::cpu {

inline constexpr int kAnyMember = -1;

// A group whose members are all in this process.
class Members {
 public:
  explicit Members(int size) : endpoints(static_cast<std::size_t>(size)) {
    const auto store = std::make_shared<store::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, store, rank, size] {
        absl::StatusOr<std::shared_ptr<ShmP2p>> joined =
            ShmP2p::join({.rank = rank, .size = size, .store = store});
        ASSERT_TRUE(joined.ok()) << joined.status();
        endpoints[static_cast<std::size_t>(rank)] = *std::move(joined);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ShmP2p& operator[](int rank) { return *endpoints[static_cast<std::size_t>(rank)]; }

  std::vector<std::shared_ptr<ShmP2p>> endpoints;
};

}  // namespace gradwire::collectives::cpu
