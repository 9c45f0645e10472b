#include "gradwire/collectives/cpu/world_p2p/p2p_group.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/cpu/bytes/plain_reducer.h"
#include "gradwire/collectives/cpu/world_p2p/p2p_group_test_world.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

template <class T>
std::vector<Span> spans(std::vector<std::vector<T>>& lists) {
  std::vector<Span> out;
  for (std::vector<T>& list : lists) out.push_back(span(list));
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

template <class T>
void check_everything(P2pGroup& group, int rank, std::size_t count, bool all_roots = true) {
  const PlainReducer<T, Sum> reducer;
  const int size = group.size();
  const auto n = static_cast<std::size_t>(size);
  const auto own = static_cast<std::size_t>(rank);
  const auto ok = [&](const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << "rank " << rank << ": " << status;
  };
  ok(group.barrier(group_timeout()));
  {
    std::vector<T> data = values<T>(count, rank);
    ok(group.all_reduce(span(data), reducer, group_timeout()));
    EXPECT_EQ(data, sums<T>(count, size));
  }
  for (int root = all_roots ? 0 : size / 2; root < size; root += all_roots ? 1 : size) {
    std::vector<T> data = values<T>(count, rank);
    ok(group.broadcast(span(data), root, group_timeout()));
    EXPECT_EQ(data, values<T>(count, root));
    data = values<T>(count, rank);
    ok(group.reduce(span(data), root, reducer, group_timeout()));
    EXPECT_EQ(data, rank == root ? sums<T>(count, size) : values<T>(count, rank));

    std::vector<T> mine = values<T>(count, rank);
    std::vector<std::vector<T>> list(rank == root ? n : 0, std::vector<T>(count));
    ok(group.gather(span(mine), spans(list), root, group_timeout()));
    for (std::size_t i = 0; i < list.size(); ++i) EXPECT_EQ(list[i], values<T>(count, static_cast<int>(i)));
    std::fill(mine.begin(), mine.end(), T(0));
    ok(group.scatter(span(mine), spans(list), root, group_timeout()));
    EXPECT_EQ(mine, values<T>(count, rank));
  }
  {
    std::vector<T> mine = values<T>(count, rank);
    std::vector<std::vector<T>> list(n, std::vector<T>(count));
    ok(group.all_gather(span(mine), spans(list), group_timeout()));
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(list[i], values<T>(count, static_cast<int>(i)));
  }
  {
    // Blocks of different sizes.
    std::vector<std::vector<T>> inputs;
    for (int to = 0; to < size; ++to)
      inputs.push_back(values<T>(count + static_cast<std::size_t>(to), rank, to));
    std::vector<T> output(count + own);
    ok(group.reduce_scatter(span(output), spans(inputs), reducer, group_timeout()));
    EXPECT_EQ(output, sums<T>(count + own, size, rank));
    for (int to = 0; to < size; ++to)
      EXPECT_EQ(inputs[static_cast<std::size_t>(to)],
                values<T>(count + static_cast<std::size_t>(to), rank, to));
    std::vector<std::vector<T>> outputs;
    for (int from = 0; from < size; ++from) outputs.emplace_back(count + own);
    ok(group.all_to_all(spans(outputs), spans(inputs), group_timeout()));
    for (int from = 0; from < size; ++from)
      EXPECT_EQ(outputs[static_cast<std::size_t>(from)], values<T>(count + own, from, rank));
  }
}

class P2pGroupTest : public ::testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  void TearDown() override { EXPECT_EQ(before_.left(), ""); }

 private:
  transport::ProcessCounts before_;
};

INSTANTIATE_TEST_SUITE_P(Worlds, P2pGroupTest,
                         ::testing::Combine(::testing::Range(1, 8), ::testing::Values("default", "tcp")),
                         [](const auto& info) {
                           return absl::StrCat(std::get<1>(info.param), std::get<0>(info.param));
                         });

TEST_P(P2pGroupTest, EveryOperationMatchesANaiveOne) {
  const auto& [size, transport] = GetParam();
  GroupWorld world(size, transport);
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  for (const std::size_t count : {0, 1, 7, 1000}) {
    world.run([&, count = count](P2pGroup& group, int rank) {
      check_everything<int64_t>(group, rank, count);
      check_everything<double>(group, rank, count);
    });
  }
}

TEST_P(P2pGroupTest, EveryOperationWithLongData) {
  const auto& [size, transport] = GetParam();
  GroupWorld world(size, transport);
  world.make_groups(std::size_t{32} << 10, std::size_t{512} << 10);
  world.run([&](P2pGroup& group, int rank) {
    check_everything<double>(group, rank, (std::size_t{1} << 20) / 8, false);
  });
  // Many pieces, some of which are empty.
  world.make_groups(0, 1000);
  for (const std::size_t count : {1, 5, 999, 4'001}) {
    world.run([&, count = count](P2pGroup& group, int rank) {
      check_everything<int64_t>(group, rank, count, count < 100);
    });
  }
}

// The sum of these numbers depends on the order of additions.
TEST_P(P2pGroupTest, AllRanksGetTheSameBits) {
  const auto& [size, transport] = GetParam();
  GroupWorld world(size, transport);
  world.make_groups(1024, 4096);
  for (const std::size_t count : {3, 100, 5000}) {
    std::vector<std::vector<double>> results(static_cast<std::size_t>(size));
    world.run([&, count = count](P2pGroup& group, int rank) {
      std::vector<double> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = 1.0 / static_cast<double>(3 + i * 13 + static_cast<std::size_t>(rank) * 7919);
      ASSERT_TRUE(group.all_reduce(span(data), PlainReducer<double, Sum>(), group_timeout()).ok());
      results[static_cast<std::size_t>(rank)] = data;
    });
    for (const std::vector<double>& result : results) {
      ASSERT_EQ(result.size(), count);
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), count * sizeof(double)), 0);
    }
  }
}

TEST_P(P2pGroupTest, WrongArgumentsBreakNothing) {
  const auto& [size, transport] = GetParam();
  GroupWorld world(size, transport);
  world.make_groups(1024, 4096);
  world.run([size = size](P2pGroup& group, int) {
    std::vector<char> data(12);
    std::vector<Span> list(static_cast<std::size_t>(size) + 1, span(data));
    const PlainReducer<double, Sum> reducer;
    const auto wrong = [](const absl::Status& status) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    };
    wrong(group.all_reduce(span(data), reducer, group_timeout()));
    wrong(group.broadcast(span(data), -1, group_timeout()));
    wrong(group.reduce(span(data), size, PlainReducer<char, Sum>(), group_timeout()));
    wrong(group.all_gather(span(data), list, group_timeout()));
    wrong(group.all_to_all(list, list, group_timeout()));
    wrong(group.reduce_scatter(span(data), list, PlainReducer<char, Sum>(), group_timeout()));
    EXPECT_TRUE(group.barrier(group_timeout()).ok());
  });
}

}  // namespace
}  // namespace gradwire::collectives::cpu
