#include "gradwire/base/metrics/label_table.h"

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/base/metrics/counter.h"
#include "gtest/gtest.h"

namespace gradwire::metrics {
namespace {

struct Named {
  std::string name;
  std::unique_ptr<Counter> counter = std::make_unique<Counter>();
};
Named make(absl::string_view name) { return {std::string(name)}; }

TEST(LabelTable, FindsWhatItHasMade) {
  LabelTable<Named, 4> table;
  Named& a = table.find("a", make);
  Named& b = table.find("b", make);
  EXPECT_NE(&a, &b);
  EXPECT_EQ(&table.find("a", make), &a);
  EXPECT_EQ(table.find("b", make).name, "b");
}

TEST(LabelTable, NamesBeyondTheBoundAreOther) {
  LabelTable<Named, 4> table;
  std::vector<Named*> first;
  for (int i = 0; i < 4; ++i) first.push_back(&table.find(std::to_string(i), make));
  Named& other = table.find("4", make);
  EXPECT_EQ(other.name, kOther);
  for (int i = 5; i < 1'000; ++i) EXPECT_EQ(&table.find(std::to_string(i), make), &other);
  // The first names keep their own.
  for (int i = 0; i < 4; ++i) EXPECT_EQ(&table.find(std::to_string(i), make), first[i]);
}

// A program may choose its names, so that they have one hash.
TEST(LabelTable, NamesOfOneHashAreDistinguished) {
  const std::string first = "namespace_a::" + std::string(20, 'a') + "::function_of_the_program";
  std::vector<std::string> names;
  for (int i = 0; i < 26; ++i) {
    std::string name = first;
    name[9] = static_cast<char>('a' + i);  // Neither in the middle nor at the end.
    EXPECT_EQ(label_internal::hash_of(name), label_internal::hash_of(first));
    names.push_back(std::move(name));
  }
  LabelTable<Named, 20> table;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(table.find(names[i], make).name, names[i]);
  for (int i = 20; i < 26; ++i) EXPECT_EQ(table.find(names[i], make).name, kOther);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(table.find(names[i], make).name, names[i]);
}

TEST(LabelHash, DependsOnTheLengthAndOnTheEnds) {
  std::set<uint64_t> hashes;
  std::string name;
  // All lengths, among them those below and around one and two words.
  for (int length = 0; length < 40; ++length, name += 'x')
    EXPECT_TRUE(hashes.insert(label_internal::hash_of(name)).second);
  for (const char* each : {"a", "b", "ab", "ba", "layer::forward1", "layer::forward2", "1layer::forward"})
    EXPECT_TRUE(hashes.insert(label_internal::hash_of(each)).second) << each;
}

TEST(LabelTable, ThreadsFindTheSameEntries) {
  LabelTable<Named, 32> table;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1'000; ++i) table.find(std::to_string((i * (t + 1)) % 40), make).counter->add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  std::vector<Named*> seen;
  for (int i = 0; i < 40; ++i) {
    Named& entry = table.find(std::to_string(i), make);
    if (std::find(seen.begin(), seen.end(), &entry) == seen.end()) {
      seen.push_back(&entry);
      sum += entry.counter->value();
    }
  }
  EXPECT_EQ(seen.size(), 33u);  // 32 and the others.
  EXPECT_EQ(sum, 4'000u);
}

}  // namespace
}  // namespace gradwire::metrics
