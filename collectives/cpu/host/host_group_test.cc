#include "gradwire/collectives/cpu/host/host_group.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/collectives/cpu/host/host_group_test_members.h"
#include "gtest/gtest.h"

namespace gradwire::collectives::cpu {
namespace {

std::size_t descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

std::vector<int64_t> values_of(int rank, std::size_t count, int64_t salt = 0) {
  std::vector<int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<int64_t>(i * 7 + 13 * salt) * (rank + 1) + rank;
  return values;
}

class HostGroupTest : public ::testing::TestWithParam<int> {};

const std::size_t kCounts[] = {0, 1, 3, 7, 8, 100, 1023, 4097, 70001};

TEST_P(HostGroupTest, EveryOperationWithEveryAlgorithm) {
  const int size = GetParam();
  const std::size_t before = descriptors();
  for (const AlgorithmSizes& sizes : kAlgorithmSizes) {
    SCOPED_TRACE(sizes.name);
    in_group(size, sizes, [&](HostGroup& group) {
      const int rank = group.rank();
      for (const std::size_t count : kCounts) {
        SCOPED_TRACE(absl::StrCat(sizes.name, " rank ", rank, " count ", count));
        std::vector<std::vector<int64_t>> all;
        std::vector<int64_t> sum(count);
        for (int each = 0; each < size; ++each) {
          all.push_back(values_of(each, count));
          for (std::size_t i = 0; i < count; ++i) sum[i] += all.back()[i];
        }
        const int root = static_cast<int>(count % size);

        std::vector<int64_t> mine = all[rank];
        ASSERT_TRUE(group.all_reduce(span(mine), Longs(), deadline()).ok());
        ASSERT_EQ(mine, sum);
        mine = all[rank];
        ASSERT_TRUE(group.reduce(span(mine), root, Longs(), deadline()).ok());
        ASSERT_EQ(mine, rank == root ? sum : all[rank]);
        mine = all[rank];
        ASSERT_TRUE(group.broadcast(span(mine), root, deadline()).ok());
        ASSERT_EQ(mine, all[root]);

        mine = all[rank];
        std::vector<std::vector<int64_t>> lists(size, std::vector<int64_t>(count));
        ASSERT_TRUE(group.all_gather(span(mine), spans(lists), deadline()).ok());
        ASSERT_EQ(lists, all);
        std::vector<std::vector<int64_t>> uneven;
        lists.clear();
        for (int each = 0; each < size; ++each) {
          uneven.push_back(values_of(each, count * (each + 1) / 2));
          lists.emplace_back(uneven.back().size());
        }
        ASSERT_TRUE(group.all_gather(span(uneven[rank]), spans(lists), deadline()).ok());
        ASSERT_EQ(lists, uneven);
        lists.assign(rank == root ? size : 0, std::vector<int64_t>(count));
        ASSERT_TRUE(group.gather(span(mine), spans(lists), root, deadline()).ok());
        if (rank == root) {
          ASSERT_EQ(lists, all);
        }
        lists.clear();
        if (rank == root) lists = all;
        ASSERT_TRUE(group.scatter(span(mine), spans(lists), root, deadline()).ok());
        ASSERT_EQ(mine, all[rank]);

        lists.clear();
        for (int each = 0; each < size; ++each) lists.push_back(values_of(rank, count, each));
        std::vector<int64_t> expected(count);
        for (int each = 0; each < size; ++each) {
          const std::vector<int64_t> theirs = values_of(each, count, rank);
          for (std::size_t i = 0; i < count; ++i) expected[i] += theirs[i];
        }
        ASSERT_TRUE(group.reduce_scatter(span(mine), spans(lists), Longs(), deadline()).ok());
        ASSERT_EQ(mine, expected);

        // Each pair of ranks has its own size.
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
        ASSERT_TRUE(group.all_to_all(spans(outputs), spans(lists), deadline()).ok());
        ASSERT_EQ(outputs, wanted);
        ASSERT_TRUE(group.barrier(deadline()).ok());
      }
    });
  }
  EXPECT_EQ(descriptors(), before);
}

// Rank 0 has a wrong size for the block of the last rank. Only rank 0 fails, and the group stays usable.
TEST_P(HostGroupTest, WrongSizeInAListOfAllGatherConcernsOneRank) {
  const int size = GetParam();
  if (size == 1) return;
  for (const AlgorithmSizes& sizes : kAlgorithmSizes) {
    in_group(size, sizes, [&](HostGroup& group) {
      const int rank = group.rank();
      // In the line, in the slot, and in several pieces. The wrong size is smaller and larger, and may need
      // another number of pieces.
      for (const std::size_t count : {1u, 3u, 6u, 7u, 500u, 70001u}) {
        for (const std::size_t wrong : {count - 1, count + 1, 10 * count, std::size_t{0}}) {
          SCOPED_TRACE(absl::StrCat(sizes.name, " rank ", rank, " count ", count, " wrong ", wrong));
          std::vector<std::vector<int64_t>> all, lists;
          for (int each = 0; each < size; ++each) all.push_back(values_of(each, count));
          lists.assign(size, std::vector<int64_t>(count));
          if (rank == 0) lists.back().assign(wrong, 0);
          const absl::Status status = group.all_gather(span(all[rank]), spans(lists), deadline());
          if (rank == 0) {
            EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
            EXPECT_EQ(status.message(),
                      absl::StrCat("rank ", size - 1, " gathers ", 8 * count,
                                   " bytes, but its entry in the list of rank 0 has ", 8 * wrong,
                                   "; the entry must have the shape of that rank's tensor"));
          } else {
            EXPECT_TRUE(status.ok()) << status;
            EXPECT_EQ(lists, all);
          }
          std::vector<int64_t> one = {1};
          ASSERT_TRUE(group.all_reduce(span(one), Longs(), deadline()).ok());
          ASSERT_EQ(one[0], size);
        }
      }
    });
  }
}

TEST_P(HostGroupTest, SumsToTheSameBitsOnAllRanks) {
  const int size = GetParam();
  for (const AlgorithmSizes& sizes : kAlgorithmSizes) {
    SCOPED_TRACE(sizes.name);
    for (const std::size_t count : {1u, 5u, 300u, 20000u}) {
      std::vector<std::vector<double>> results(size);
      in_group(size, sizes, [&](HostGroup& group) {
        std::mt19937_64 random(group.rank());
        std::vector<double> mine(count);
        for (double& value : mine)
          value = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 60));
        // The payload of a NaN must be the same, too.
        mine[0] = std::bit_cast<double>(0x7ff8000000000000u + group.rank());
        ASSERT_TRUE(group.all_reduce(span(mine), Doubles(), deadline()).ok());
        results[group.rank()] = mine;
      });
      for (int rank = 1; rank < size; ++rank) {
        EXPECT_EQ(std::memcmp(results[rank].data(), results[0].data(), count * sizeof(double)), 0) << rank;
      }
    }
  }
}

// Adds pairs of numbers, and checks that each pair is aligned as a complex number of that size must be.
class AlignedPairs final : public Reducer {
 public:
  AlignedPairs() : Reducer(2 * sizeof(double)) {}
  void combine(void* out, const void* a, const void* b, std::size_t bytes) const override {
    for (const void* each : {const_cast<const void*>(out), a, b}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each) % (2 * sizeof(double)), 0u);
    }
    Doubles().combine(out, a, b, bytes);
  }
};

TEST_P(HostGroupTest, OperandsAreAlignedForTheLargestElement) {
  for (const AlgorithmSizes& sizes : kAlgorithmSizes) {
    SCOPED_TRACE(sizes.name);
    in_group(GetParam(), sizes, [&](HostGroup& group) {
      for (const std::size_t count : {2u, 6u, 300u, 20000u}) {
        std::vector<double> mine(count, 1.0 + group.rank());
        ASSERT_TRUE(group.all_reduce(span(mine), AlignedPairs(), deadline()).ok());
        const double sum = group.size() * (group.size() + 1) / 2.0;
        EXPECT_EQ(mine, std::vector<double>(count, sum));
        mine.assign(count, 1.0 + group.rank());
        ASSERT_TRUE(group.reduce(span(mine), 0, AlignedPairs(), deadline()).ok());
        EXPECT_EQ(mine, std::vector<double>(count, group.rank() == 0 ? sum : 1.0 + group.rank()));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostGroupTest, ::testing::Values(1, 2, 3, 4, 5, 8));

}  // namespace
}  // namespace gradwire::collectives::cpu
