#include "collectives/cpu/mesh/mesh_group.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/cpu/plain_reducer.h"
#include "gtest/gtest.h"
#include "store/hash_store.h"
#include "transport/process_counts.h"

namespace gradwire::collectives::cpu {
namespace {

absl::Time in(absl::Duration duration) { return Clock::system().now() + duration; }
absl::Time patience() { return in(absl::Seconds(120)); }

template <class T>
Span span(std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

template <class T>
std::vector<Span> spans(std::vector<std::vector<T>>& lists) {
  std::vector<Span> out;
  for (std::vector<T>& list : lists) out.push_back(span(list));
  return out;
}

// What a rank brings: small whole numbers, so that sums of doubles are exact, and different everywhere.
template <class T>
std::vector<T> values(std::size_t count, int rank, int block = 0) {
  std::vector<T> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<T>((i * 7 + i / 251) % 1000 + rank * 1000 + block * 17);
  return out;
}

template <class T>
std::vector<T> sums(std::size_t count, int size, int block = 0) {
  std::vector<T> out(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> part = values<T>(count, rank, block);
    for (std::size_t i = 0; i < count; ++i) out[i] += part[i];
  }
  return out;
}

// Meshes and groups of all ranks, in one process.
class World {
 public:
  World(int size, std::string transport, std::vector<int> absent = {}) : size_(size) {
    for (int rank = 0; rank < size; ++rank) {
      meshes.push_back(nullptr);
      groups.push_back(nullptr);
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
      Mesh::Options options;
      options.rank = rank;
      options.size = size;
      options.store = store_;
      if (transport != "default") options.transports = {transport};
      absl::StatusOr<std::shared_ptr<Mesh>> mesh = Mesh::create(std::move(options));
      EXPECT_TRUE(mesh.ok()) << mesh.status();
      meshes.back() = *mesh;
    }
  }

  // Groups with these bounds, of all ranks.
  void make_groups(std::size_t small_bytes, std::size_t segment_bytes) {
    std::vector<int> ranks(static_cast<std::size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (int rank = 0; rank < size_; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      groups[at] = nullptr;
      if (meshes[at] == nullptr) continue;
      groups[at] = std::make_unique<MeshGroup>(MeshGroup::Options{.mesh = meshes[at],
                                                                  .ranks = ranks,
                                                                  .position = rank,
                                                                  .channel = channel_,
                                                                  .small_bytes = small_bytes,
                                                                  .segment_bytes = segment_bytes});
    }
    channel_ += 2;
  }

  // Runs the function for each rank that is there, each on a thread.
  void run(const std::function<void(MeshGroup&, int)>& function) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      if (groups[static_cast<std::size_t>(rank)] == nullptr) continue;
      threads.emplace_back([&, rank] { function(*groups[static_cast<std::size_t>(rank)], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::shared_ptr<Mesh>> meshes;
  std::vector<std::unique_ptr<MeshGroup>> groups;

 private:
  const int size_;
  const std::shared_ptr<store::Store> store_ = std::make_shared<store::HashStore>();
  uint64_t channel_ = 100;
};

template <class T>
void check_everything(MeshGroup& group, int rank, std::size_t count, bool all_roots = true) {
  const PlainReducer<T, Sum> reducer;
  const int size = group.size();
  const auto n = static_cast<std::size_t>(size);
  const auto own = static_cast<std::size_t>(rank);
  const auto ok = [&](const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << "rank " << rank << ": " << status;
  };
  ok(group.barrier(patience()));
  {
    std::vector<T> data = values<T>(count, rank);
    ok(group.all_reduce(span(data), reducer, patience()));
    EXPECT_EQ(data, sums<T>(count, size));
  }
  for (int root = all_roots ? 0 : size / 2; root < size; root += all_roots ? 1 : size) {
    std::vector<T> data = values<T>(count, rank);
    ok(group.broadcast(span(data), root, patience()));
    EXPECT_EQ(data, values<T>(count, root));
    data = values<T>(count, rank);
    ok(group.reduce(span(data), root, reducer, patience()));
    EXPECT_EQ(data, rank == root ? sums<T>(count, size) : values<T>(count, rank));

    std::vector<T> mine = values<T>(count, rank);
    std::vector<std::vector<T>> list(rank == root ? n : 0, std::vector<T>(count));
    ok(group.gather(span(mine), spans(list), root, patience()));
    for (std::size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], values<T>(count, static_cast<int>(i)));
    std::fill(mine.begin(), mine.end(), T(0));
    ok(group.scatter(span(mine), spans(list), root, patience()));
    EXPECT_EQ(mine, values<T>(count, rank));
  }
  {
    std::vector<T> mine = values<T>(count, rank);
    std::vector<std::vector<T>> list(n, std::vector<T>(count));
    ok(group.all_gather(span(mine), spans(list), patience()));
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(list[i], values<T>(count, static_cast<int>(i)));
  }
  {
    // Blocks of different sizes.
    std::vector<std::vector<T>> inputs;
    for (int to = 0; to < size; ++to)
      inputs.push_back(values<T>(count + static_cast<std::size_t>(to), rank, to));
    std::vector<T> output(count + own);
    ok(group.reduce_scatter(span(output), spans(inputs), reducer, patience()));
    EXPECT_EQ(output, sums<T>(count + own, size, rank));
    for (int to = 0; to < size; ++to)
      EXPECT_EQ(inputs[static_cast<std::size_t>(to)],
                values<T>(count + static_cast<std::size_t>(to), rank, to));
    std::vector<std::vector<T>> outputs;
    for (int from = 0; from < size; ++from) outputs.emplace_back(count + own);
    ok(group.all_to_all(spans(outputs), spans(inputs), patience()));
    for (int from = 0; from < size; ++from)
      EXPECT_EQ(outputs[static_cast<std::size_t>(from)], values<T>(count + own, from, rank));
  }
}

class MeshGroupTest : public testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  void SetUp() override {
    descriptors_ = transport::count_descriptors();
    threads_ = transport::count_threads();
  }
  void TearDown() override {
    EXPECT_EQ(transport::count_descriptors(), descriptors_);
    EXPECT_EQ(transport::count_threads(), threads_);
  }

 private:
  int descriptors_ = 0;
  int threads_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Worlds, MeshGroupTest,
                         testing::Combine(testing::Range(1, 8), testing::Values("default", "tcp")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param), std::get<0>(info.param));
                         });

TEST_P(MeshGroupTest, EveryOperationGivesWhatANaiveOneDoes) {
  const auto& [size, transport] = GetParam();
  World world(size, transport);
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  for (const std::size_t count : {0, 1, 7, 1000}) {
    world.run([&, count = count](MeshGroup& group, int rank) {
      check_everything<int64_t>(group, rank, count);
      check_everything<double>(group, rank, count);
    });
  }
}

TEST_P(MeshGroupTest, LongDataToo) {
  const auto& [size, transport] = GetParam();
  World world(size, transport);
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([&](MeshGroup& group, int rank) {
    check_everything<double>(group, rank, (std::size_t{1} << 20) / 8, false);
  });
  // Many pieces, of which some are empty.
  world.make_groups(0, 1000);
  for (const std::size_t count : {1, 5, 999, 4'001}) {
    world.run([&, count = count](MeshGroup& group, int rank) {
      check_everything<int64_t>(group, rank, count, count < 100);
    });
  }
}

// Numbers whose sum depends on the order of additions.
TEST_P(MeshGroupTest, AllRanksGetTheSameBits) {
  const auto& [size, transport] = GetParam();
  World world(size, transport);
  world.make_groups(1024, 4096);
  for (const std::size_t count : {3, 100, 5000}) {
    std::vector<std::vector<double>> results(static_cast<std::size_t>(size));
    world.run([&, count = count](MeshGroup& group, int rank) {
      std::vector<double> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = 1.0 / static_cast<double>(3 + i * 13 + static_cast<std::size_t>(rank) * 7919);
      ASSERT_TRUE(group.all_reduce(span(data), PlainReducer<double, Sum>(), patience()).ok());
      results[static_cast<std::size_t>(rank)] = data;
    });
    for (const std::vector<double>& result : results) {
      ASSERT_EQ(result.size(), count);
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), count * sizeof(double)), 0);
    }
  }
}

TEST_P(MeshGroupTest, WrongArgumentsBreakNothing) {
  const auto& [size, transport] = GetParam();
  World world(size, transport);
  world.make_groups(1024, 4096);
  world.run([size = size](MeshGroup& group, int) {
    std::vector<char> data(12);
    std::vector<Span> list(static_cast<std::size_t>(size) + 1, span(data));
    const PlainReducer<double, Sum> reducer;
    const auto wrong = [](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    };
    wrong(group.all_reduce(span(data), reducer, patience()));
    wrong(group.broadcast(span(data), -1, patience()));
    wrong(group.reduce(span(data), size, PlainReducer<char, Sum>(), patience()));
    wrong(group.all_gather(span(data), list, patience()));
    wrong(group.all_to_all(list, list, patience()));
    wrong(group.reduce_scatter(span(data), list, PlainReducer<char, Sum>(), patience()));
    EXPECT_TRUE(group.barrier(patience()).ok());
  });
}

TEST(MeshGroupFailureTest, AbsentMemberIsNamedWithinTheDeadline) {
  for (const std::size_t count : {1, 100'000}) {
    World world(3, "default", /*absent=*/{1});
    world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
    const absl::Time start = Clock::system().now();
    world.run([&, count = count](MeshGroup& group, int rank) {
      std::vector<double> data = values<double>(count, rank);
      const absl::Status status =
          group.all_reduce(span(data), PlainReducer<double, Sum>(), in(absl::Milliseconds(300)));
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
      EXPECT_NE(status.message().find("rank "), std::string::npos) << status;
      const absl::Status next = group.barrier(patience());
      EXPECT_EQ(next.code(), absl::StatusCode::kAborted) << next;
      EXPECT_NE(next.message().find("in time"), std::string::npos) << next;
    });
    EXPECT_LT(Clock::system().now() - start, absl::Seconds(20));
  }
}

// The member leaves while the others are in the operation; those that have no connection with it hear of it, too.
TEST(MeshGroupFailureTest, MemberThatGoesFailsTheOperationOnAllOthers) {
  for (const std::size_t count : {1, 1'000'000}) {
    World world(5, "default");
    world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
    world.run([](MeshGroup& group, int) { EXPECT_TRUE(group.barrier(patience()).ok()); });
    const absl::Time start = Clock::system().now();
    world.run([&, count = count](MeshGroup& group, int rank) {
      if (rank == 3) {
        world.meshes[3]->shutdown();
        return;
      }
      std::vector<double> data = values<double>(count, rank);
      const absl::Status status = group.all_reduce(span(data), PlainReducer<double, Sum>(), patience());
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find("rank 3"), std::string::npos) << status;
      EXPECT_EQ(group.barrier(patience()).code(), absl::StatusCode::kAborted);
    });
    EXPECT_LT(Clock::system().now() - start, absl::Seconds(20));
  }
}

TEST(MeshGroupFailureTest, AbortEndsTheOperationOnAllMembers) {
  World world(3, "default");
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([](MeshGroup& group, int rank) {
    if (rank == 0) {
      group.abort("no more");
      EXPECT_EQ(group.barrier(patience()).code(), absl::StatusCode::kAborted);
      return;
    }
    const absl::Status status = group.barrier(patience());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_NE(status.message().find("no more"), std::string::npos) << status;
  });
}

TEST(MeshGroupFailureTest, DifferentSizesAreAnErrorOnBothSides) {
  World world(2, "default");
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([](MeshGroup& group, int rank) {
    std::vector<double> data(static_cast<std::size_t>(rank + 1));
    const absl::Status status = group.all_reduce(span(data), PlainReducer<double, Sum>(), patience());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  });
}

TEST(MeshGroupFailureTest, GroupsOfOneMeshAreApart) {
  World world(2, "default");
  world.make_groups(1024, 4096);
  std::vector<std::unique_ptr<MeshGroup>> first = std::move(world.groups);
  world.groups.resize(2);
  world.make_groups(1024, 4096);
  first[0]->abort("over");
  world.run([](MeshGroup& group, int) { EXPECT_TRUE(group.barrier(patience()).ok()); });
  EXPECT_FALSE(first[1]->barrier(patience()).ok());
}

}  // namespace
}  // namespace gradwire::collectives::cpu
