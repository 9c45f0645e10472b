#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/host_group.h"
#include "gradwire/collectives/cpu/plain_reducer.h"
#include "gradwire/store/hash_store.h"
#include "gtest/gtest.h"

// What the tests of HostGroup have in common.
namespace gradwire::collectives::cpu {

using Longs = PlainReducer<int64_t, Sum>;
using Doubles = PlainReducer<double, Sum>;
using Member = std::function<void(HostGroup&)>;

inline absl::Time soon() { return Clock::system().now() + absl::Seconds(60); }

// How the data travels.
struct Way {
  const char* name;
  std::size_t slot_bytes, flat_bytes;
};
inline const Way kWays[] = {
    {"small slots", 4096, 64},
    {"flat", 1 << 16, 1 << 16},
    {"default", std::size_t{1} << 20, 0},
};

inline HostGroup::Options options_for(const Way& way, int index, int size,
                                      const std::shared_ptr<store::Store>& store) {
  HostGroup::Options options;
  options.memory = {.index = index, .size = size, .store = store, .slot_bytes = way.slot_bytes};
  options.flat_bytes = way.flat_bytes;
  return options;
}

// Runs every member in a thread of its own.
inline void in_group(int size, const Way& way, const Member& member) {
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back([&, i] {
      auto group = HostGroup::join(options_for(way, i, size, store));
      ASSERT_TRUE(group.ok()) << group.status();
      member(**group);
      // Nobody leaves while others still work.
      EXPECT_TRUE((*group)->barrier(soon()).ok());
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
