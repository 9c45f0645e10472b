#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_group.h"
#include "gradwire/collectives/cpu/world_p2p/world_p2p_test_world.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

// Helpers for the tests of P2pGroup.
namespace gradwire::collectives::cpu {

inline absl::Time group_timeout() { return in(absl::Seconds(120)); }

template <class T>
Span span(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

// The input of a rank: small whole numbers, so that sums of doubles are exact, different for each rank and
// block.
template <class T>
std::vector<T> values(std::size_t count, int rank, int block = 0) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<T>((i * 7 + i / 251) % 1000 + rank * 1000 + block * 17);
  return out;
}

// Ends and groups of all ranks, in one process.
class GroupWorld {
 public:
  GroupWorld(int size, std::string transport, std::vector<int> absent = {}) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      ends.push_back(nullptr);
      groups.push_back(nullptr);
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
      WorldP2p::Options options;
      options.rank = rank;
      options.size = size;
      options.store = store_;
      if (transport != "default") options.transports = {transport};
      absl::StatusOr<std::shared_ptr<WorldP2p>> p2p = WorldP2p::create(std::move(options));
      EXPECT_TRUE(p2p.ok()) << p2p.status();
      ends.back() = *p2p;
    }
  }

  // Makes groups of all ranks with these sizes.
  void make_groups(std::size_t small_bytes, std::size_t segment_bytes) {
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      groups[at] = nullptr;
      if (ends[at] == nullptr) continue;
      groups[at] = std::make_unique<P2pGroup>(P2pGroup::Options{.p2p = ends[at],
                                                                .ranks = ranks,
                                                                .position = rank,
                                                                .channel = channel_,
                                                                .small_bytes = small_bytes,
                                                                .segment_bytes = segment_bytes});
    }
    channel_ += 2;
  }

  // Runs the function for each rank that is not absent, each in its own thread.
  void run(const std::function<void(P2pGroup&, int)>& function) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      if (groups[static_cast<std::size_t>(rank)] == nullptr) continue;
      threads.emplace_back([&, rank] { function(*groups[static_cast<std::size_t>(rank)], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::shared_ptr<WorldP2p>> ends;
  std::vector<std::unique_ptr<P2pGroup>> groups;

 private:
  const int size_;
  const std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
  uint64_t channel_ = 100;
};

}  // namespace gradwire::collectives::cpu
