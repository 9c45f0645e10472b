#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/bytes/plain_reducer.h"
#include "gradwire/collectives/cpu/host/host_group.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

// Helpers for the tests of HostGroup.
namespace gradwire::collectives::cpu {

using Longs = PlainReducer<int64_t, Sum>;
using Doubles = PlainReducer<double, Sum>;
using Member = std::function<void(HostGroup&)>;

inline absl::Time deadline() { return Clock::system().now() + absl::Seconds(60); }

// Sizes that select the algorithms of HostGroup.
struct AlgorithmSizes {
  const char* name;
  std::size_t slot_bytes, flat_bytes;
};
inline const AlgorithmSizes kAlgorithmSizes[] = {
    {"small slots", 4096, 64},
    {"flat", 1 << 16, 1 << 16},
    {"default", std::size_t{1} << 20, 0},
};

inline HostGroup::Options options_for(const AlgorithmSizes& sizes, int index, int size,
                                      const std::shared_ptr<store::Store>& store) {
  HostGroup::Options options;
  options.memory = {.index = index, .size = size, .store = store, .slot_bytes = sizes.slot_bytes};
  options.flat_bytes = sizes.flat_bytes;
  return options;
}

// Runs every member in its own thread.
inline void in_group(int size, const AlgorithmSizes& sizes, const Member& member) {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      auto group = HostGroup::join(options_for(sizes, i, size, store));
      ASSERT_TRUE(group.ok()) << group.status();
      member(**group);
      // No member leaves while others still work.
      EXPECT_TRUE((*group)->barrier(deadline()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <class T>
Span span(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

template <class T>
std::vector<Span> spans(std::vector<std::vector<T>>& lists) {
  std::vector<Span> result;
  for (auto& list : lists) result.push_back(span(list));
  return result;
}

}  // namespace gradwire::collectives::cpu
