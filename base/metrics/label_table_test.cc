#include "gradwire/base/metrics/label_table.h"

#include <memory>
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
