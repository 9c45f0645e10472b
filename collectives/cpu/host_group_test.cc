#include "collectives/cpu/host_group.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/cpu/plain_reducer.h"
#include "gtest/gtest.h"
#include "store/file_store.h"
#include "store/hash_store.h"

namespace gradwire::collectives::cpu {
namespace {

using Longs = PlainReducer<int64_t, Sum>;
using Doubles = PlainReducer<double, Sum>;
using Member = std::function<void(HostGroup&)>;

absl::Time soon() { return Clock::system().now() + absl::Seconds(60); }

// How the data travels.
struct Way {
  const char* name;
  std::size_t slot_bytes, flat_bytes;
};
const Way kWays[] = {
    {"small slots", 4096, 64},
    {"flat", 1 << 16, 1 << 16},
    {"default", std::size_t{1} << 20, 0},
};

HostGroup::Options options_for(const Way& way, int index, int size,
                               const std::shared_ptr<store::Store>& store) {
  HostGroup::Options options;
  options.memory = {.index = index, .size = size, .store = store, .slot_bytes = way.slot_bytes};
  options.flat_bytes = way.flat_bytes;
  return options;
}

// Runs every member in a thread of its own.
void in_group(int size, const Way& way, const Member& member) {
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

std::size_t descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
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

std::vector<int64_t> values_of(int rank, std::size_t count, int64_t salt = 0) {
  std::vector<int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<int64_t>(i * 7 + 13 * salt) * (rank + 1) + rank;
  return values;
}

class HostGroupTest : public testing::TestWithParam<int> {};

const std::size_t kCounts[] = {0, 1, 3, 7, 8, 100, 1023, 4097, 70001};

TEST_P(HostGroupTest, DoesEveryOperationOnEveryWay) {
  const int size = GetParam();
  const std::size_t before = descriptors();
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    in_group(size, way, [&](HostGroup& group) {
      const int rank = group.rank();
      for (const std::size_t count : kCounts) {
        SCOPED_TRACE(absl::StrCat(way.name, " rank ", rank, " count ", count));
        std::vector<std::vector<int64_t>> all;
        std::vector<int64_t> sum(count);
        for (int each = 0; each < size; ++each) {
          all.push_back(values_of(each, count));
          for (std::size_t i = 0; i < count; ++i) sum[i] += all.back()[i];
        }
        const int root = static_cast<int>(count % size);

        std::vector<int64_t> mine = all[rank];
        ASSERT_TRUE(group.all_reduce(span(mine), Longs(), soon()).ok());
        ASSERT_EQ(mine, sum);
        mine = all[rank];
        ASSERT_TRUE(group.reduce(span(mine), root, Longs(), soon()).ok());
        ASSERT_EQ(mine, rank == root ? sum : all[rank]);
        mine = all[rank];
        ASSERT_TRUE(group.broadcast(span(mine), root, soon()).ok());
        ASSERT_EQ(mine, all[root]);

        mine = all[rank];
        std::vector<std::vector<int64_t>> lists(size, std::vector<int64_t>(count));
        ASSERT_TRUE(group.all_gather(span(mine), spans(lists), soon()).ok());
        ASSERT_EQ(lists, all);
        lists.assign(rank == root ? size : 0, std::vector<int64_t>(count));
        ASSERT_TRUE(group.gather(span(mine), spans(lists), root, soon()).ok());
        if (rank == root) {
          ASSERT_EQ(lists, all);
        }
        lists.clear();
        if (rank == root) lists = all;
        ASSERT_TRUE(group.scatter(span(mine), spans(lists), root, soon()).ok());
        ASSERT_EQ(mine, all[rank]);

        lists.clear();
        for (int each = 0; each < size; ++each) lists.push_back(values_of(rank, count, each));
        std::vector<int64_t> expected(count);
        for (int each = 0; each < size; ++each) {
          const std::vector<int64_t> theirs = values_of(each, count, rank);
          for (std::size_t i = 0; i < count; ++i) expected[i] += theirs[i];
        }
        ASSERT_TRUE(group.reduce_scatter(span(mine), spans(lists), Longs(), soon()).ok());
        ASSERT_EQ(mine, expected);

        // Each pair has a size of its own.
        const auto size_of = [&](int from, int to) {
          return count * static_cast<std::size_t>(from + 2 * to) / 3;
        };
        std::vector<std::vector<int64_t>> outputs, wanted;
        lists.clear();
        for (int each = 0; each < size; ++each) {
          lists.push_back(values_of(rank, size_of(rank, each), each));
          outputs.emplace_back(size_of(each, rank));
          wanted.push_back(values_of(each, size_of(each, rank), rank));
        }
        ASSERT_TRUE(group.all_to_all(spans(outputs), spans(lists), soon()).ok());
        ASSERT_EQ(outputs, wanted);
        ASSERT_TRUE(group.barrier(soon()).ok());
      }
    });
  }
  EXPECT_EQ(descriptors(), before);
}

TEST_P(HostGroupTest, SumsToTheSameBitsOnAllRanks) {
  const int size = GetParam();
  for (const Way& way : kWays) {
    SCOPED_TRACE(way.name);
    for (const std::size_t count : {1u, 5u, 300u, 20000u}) {
      std::vector<std::vector<double>> results(size);
      in_group(size, way, [&](HostGroup& group) {
        std::mt19937_64 random(group.rank());
        std::vector<double> mine(count);
        for (double& value : mine)
          value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 60));
        // The payload of a number that is none, too.
        mine[0] = std::bit_cast<double>(0x7ff8000000000000u + group.rank());
        ASSERT_TRUE(group.all_reduce(span(mine), Doubles(), soon()).ok());
        results[group.rank()] = mine;
      });
      for (int rank = 1; rank < size; ++rank) {
        EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(), count * sizeof(double)), 0) << rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostGroupTest, testing::Values(1, 2, 3, 4, 5, 8));

TEST(HostGroup, NamesThoseThatDidNotArrive) {
  in_group(1, kWays[0], [](HostGroup&) {});
  const auto store = std::make_shared<store::HashStore>();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      HostGroup::Options options = options_for(kWays[2], i, 3, store);
      options.names = {10, 20, 30};
      auto group = HostGroup::join(options);
      ASSERT_TRUE(group.ok()) << group.status();
      if (i == 1) {
        // Stays until the others have given up.
        EXPECT_TRUE(store->try_wait({"gave up 0", "gave up 2"}, absl::Seconds(60)).ok());
        EXPECT_EQ((*group)->barrier(soon()).code(), absl::StatusCode::kAborted);
        return;
      }
      std::vector<int64_t> mine(5);
      const absl::Status status =
          (*group)->all_reduce(span(mine), Longs(), Clock::system().now() + absl::Milliseconds(100));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "did not arrive: rank 20")) << status;
      const absl::Status later = (*group)->barrier(soon());
      EXPECT_EQ(later.code(), absl::StatusCode::kAborted) << later;
      EXPECT_TRUE(absl::StrContains(later.message(), "rank 20")) << later;
      EXPECT_TRUE(store->try_set(absl::StrCat("gave up ", i), "").ok());
      EXPECT_TRUE(store->try_wait({"gave up 0", "gave up 2"}, absl::Seconds(60)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostGroup, HearsOfOneThatLeft) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread leaver([&] { ASSERT_TRUE(HostGroup::join(options_for(kWays[2], 1, 2, store)).ok()); });
  auto group = HostGroup::join(options_for(kWays[2], 0, 2, store));
  ASSERT_TRUE(group.ok()) << group.status();
  leaver.join();
  const absl::Status status = (*group)->barrier(soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 is gone")) << status;
}

TEST(HostGroup, EndsEverywhereOnAbort) {
  const auto store = std::make_shared<store::HashStore>();
  std::thread other([&] {
    auto group = HostGroup::join(options_for(kWays[2], 1, 2, store));
    ASSERT_TRUE(group.ok());
    (*group)->abort("the user wants so");
    EXPECT_TRUE(store->try_wait({"done"}, absl::Seconds(60)).ok());
  });
  auto group = HostGroup::join(options_for(kWays[2], 0, 2, store));
  ASSERT_TRUE(group.ok()) << group.status();
  std::vector<int64_t> mine(5);
  const absl::Status status = (*group)->all_reduce(span(mine), Longs(), soon());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "the user wants so")) << status;
  EXPECT_TRUE(store->try_set("done", "").ok());
  other.join();
}

TEST(HostGroup, RefusesPairsThatDisagree) {
  in_group(1, kWays[0], [](HostGroup&) {});
  for (const Way& way : {kWays[0], kWays[2]}) {
    const auto store = std::make_shared<store::HashStore>();
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        auto group = HostGroup::join(options_for(way, i, 2, store));
        ASSERT_TRUE(group.ok());
        std::vector<std::vector<int64_t>> inputs(2, std::vector<int64_t>(4)),
            outputs(2, std::vector<int64_t>(4));
        if (i == 1) outputs[0].resize(3);
        const absl::Status status = (*group)->all_to_all(spans(outputs), spans(inputs), soon());
        const absl::Status then = (*group)->barrier(soon());
        EXPECT_FALSE(then.ok());
        EXPECT_TRUE(absl::StrContains(then.message(), "rank 0 brings 32 bytes for rank 1, which expects 24"))
            << then;
        if (i == 1) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        }
        EXPECT_TRUE(store->try_set(absl::StrCat("end ", i), "").ok());
        EXPECT_TRUE(store->try_wait({"end 0", "end 1"}, absl::Seconds(60)).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(HostGroup, NoticesAKilledProcess) {
  const std::string path = absl::StrCat(testing::TempDir(), "/host_group_", getpid());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto group = HostGroup::join(options_for(kWays[2], 1, 2, std::make_shared<store::FileStore>(path)));
    if (!group.ok() || write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  auto group = HostGroup::join(options_for(kWays[2], 0, 2, std::make_shared<store::FileStore>(path)));
  ASSERT_TRUE(group.ok()) << group.status();
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  std::vector<int64_t> mine(5);
  absl::Time killed;
  std::thread killer([&] {
    killed = Clock::system().now();
    kill(child, SIGKILL);
  });
  const absl::Status status = (*group)->all_reduce(span(mine), Longs(), soon());
  const absl::Time noticed = Clock::system().now();
  killer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "rank 1 is gone")) << status;
  EXPECT_LT(noticed - killed, absl::Seconds(10));
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace gradwire::collectives::cpu
