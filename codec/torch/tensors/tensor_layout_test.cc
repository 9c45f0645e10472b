#include "gradwire/codec/torch/tensors/tensor_layout.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace gradwire::rpc {
namespace {

using Sizes = std::vector<int64_t>;

TEST(CheckedExtent, CountsElementsAndBytes) {
  EXPECT_EQ(checked_extent(Sizes{2, 3}, 4)->numel, 6);
  EXPECT_EQ(checked_extent(Sizes{2, 3}, 4)->bytes, 24);
  EXPECT_EQ(checked_extent(Sizes{}, 8)->numel, 1);
  EXPECT_EQ(checked_extent(Sizes{3, 0}, 8)->bytes, 0);
  // Beyond 32 bits.
  EXPECT_EQ(checked_extent(Sizes{1 << 20, 1 << 20}, 4)->bytes, int64_t{1} << 42);
}

TEST(CheckedExtent, OverflowRefusedEvenBehindAZero) {
  const int64_t big = int64_t{1} << 40;
  EXPECT_FALSE(checked_extent(Sizes{big, big}, 1).ok());
  EXPECT_FALSE(checked_extent(Sizes{0, big, big}, 1).ok());
  EXPECT_FALSE(checked_extent(Sizes{std::numeric_limits<int64_t>::max()}, 2).ok());
  EXPECT_FALSE(checked_extent(Sizes{-1}, 1).ok());
  EXPECT_FALSE(checked_extent(Sizes(65, 1), 1).ok());
  EXPECT_TRUE(checked_extent(Sizes(64, 1), 1).ok());
}

TEST(CheckDense, PermutationsOfRowMajorAccepted) {
  EXPECT_TRUE(check_dense(Sizes{2, 3}, Sizes{1, 2}, 6).ok());
  EXPECT_TRUE(check_dense(Sizes{2, 3, 4}, Sizes{4, 8, 1}, 24).ok());
  EXPECT_TRUE(check_dense(Sizes{2, 1, 3}, Sizes{1, 6, 2}, 6).ok());
}

TEST(CheckDense, GapsOverlapsAndNonsenseRefused) {
  EXPECT_FALSE(check_dense(Sizes{2, 3}, Sizes{4, 1}, 6).ok());
  EXPECT_FALSE(check_dense(Sizes{2, 3}, Sizes{0, 1}, 6).ok());
  EXPECT_FALSE(check_dense(Sizes{2, 3}, Sizes{1, 1}, 6).ok());
  EXPECT_FALSE(check_dense(Sizes{2, 3}, Sizes{-1, 2}, 6).ok());
  EXPECT_FALSE(check_dense(Sizes{2, 3}, Sizes{1}, 6).ok());
  EXPECT_FALSE(check_dense(Sizes{1, 6}, Sizes{std::numeric_limits<int64_t>::max(), 1}, 6).ok());
}

TEST(PortableStrides, StridesOfSizeOneAreCut) {
  EXPECT_EQ(portable_strides(Sizes{2, 1, 3}, Sizes{1, 1000, 2}, 6), (Sizes{1, 6, 2}));
}

TEST(CheckBools, OtherBytesRefused) {
  const unsigned char good[] = {0, 1, 1};
  const unsigned char bad[] = {0, 2, 1};
  EXPECT_TRUE(check_bools(good, 3).ok());
  EXPECT_FALSE(check_bools(bad, 3).ok());
}

}  // namespace
}  // namespace gradwire::rpc
