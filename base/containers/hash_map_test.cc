#include "gradwire/base/containers/hash_map.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "gradwire/base/testing/failing_memory.h"

namespace gradwire {
namespace {

TEST(HashMap, GrowsMovesAndFindsByView) {
  HashMap<std::string, std::unique_ptr<int>> numbers;
  for (int i = 0; i < 1'000; ++i) numbers.emplace(std::to_string(i), std::make_unique<int>(i));
  const auto moved = std::move(numbers);
  EXPECT_EQ(moved.size(), 1'000u);
  EXPECT_EQ(*moved.at("999"), 999);
  EXPECT_TRUE(moved.contains(absl::string_view("17")));
  HashSet<int> set = {1, 2, 2};
  HashSet<int> other;
  set.swap(other);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(other.size(), 2u);
}

struct Throws {
  explicit Throws(int) { throw std::runtime_error("cannot be made"); }
};

TEST(HashMapDeathTest, TableThatCannotGrowEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto grow = [] {
    HashSet<int> table;
    const FailingMemory none;
    table.insert(1);
  };
  EXPECT_DEATH(grow(), "the growth of a table failed, and the process ends.*no memory is left");
}

TEST(HashMapDeathTest, EntryThatCannotBeMadeEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto add_one_that_throws = [] {
    HashMap<int, Throws> table;
    table.try_emplace(1, 2);
  };
  EXPECT_DEATH(add_one_that_throws(), "a new entry of a table failed, and the process ends.*cannot be made");
  const auto copy_a_key = [] {
    const std::string key(100, 'k');
    HashMap<std::string, int> table;
    table.reserve(10);
    const FailingMemory none;
    table[key] = 1;
  };
  EXPECT_DEATH(copy_a_key(), "a new entry of a table failed, and the process ends.*no memory is left");
}

}  // namespace
}  // namespace gradwire
