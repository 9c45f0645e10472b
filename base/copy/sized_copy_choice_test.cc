#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "gradwire/base/copy/copy_choice.h"

namespace gradwire {
namespace {

constexpr std::array<bool, kCopyMethods> kAllMethods = {true, true, true};
constexpr std::size_t kKib = 1024;

struct Counts {
  std::array<int, kCopyMethods> used = {};
  int timed = 0;

  int memcpys() const { return used[static_cast<std::size_t>(CopyMethod::kMemcpy)]; }
  int streams() const { return used[static_cast<std::size_t>(CopyMethod::kStream)]; }
};

// Makes copies that take the given nanoseconds with each method.
Counts copies(SizedCopyChoice& choice, std::size_t bytes, int count,
              const std::array<int64_t, kCopyMethods>& nanoseconds) {
  Counts counts;
  for (int i = 0; i < count; ++i) {
    const CopyOrder order = choice.next(bytes);
    const auto method = static_cast<std::size_t>(order.method);
    ++counts.used[method];
    if (!order.timed) continue;
    ++counts.timed;
    choice.record(order.method, bytes, nanoseconds[method]);
  }
  return counts;
}

TEST(SizedCopyChoice, ShortCopiesAreNeitherChosenNorTimed) {
  SizedCopyChoice choice(kAllMethods);
  const Counts counts = copies(choice, SizedCopyChoice::kMinBytes - 1, 1000, {1'000'000, 1, 1});
  EXPECT_EQ(counts.memcpys(), 1000);
  EXPECT_EQ(counts.timed, 0);
}

TEST(SizedCopyChoice, StreamsWhereOrdinaryStoresAreMuchSlower) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 64 * kKib, 9, {35'000, 35'000, 2'000});
  EXPECT_GT(copies(choice, 64 * kKib, 10'000, {35'000, 35'000, 2'000}).streams(), 9'960);
}

TEST(SizedCopyChoice, DoesNotStreamIfTheReaderLosesMore) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 64 * kKib, 9, {2'500, 2'600, 1'500});
  EXPECT_GT(copies(choice, 64 * kKib, 10'000, {2'500, 2'600, 1'500}).memcpys(), 9'960);
}

TEST(SizedCopyChoice, StreamsIfTheSourceIsSlowToo) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 1024 * kKib, 9, {500'000, 500'000, 250'000});
  EXPECT_GT(copies(choice, 1024 * kKib, 1'000, {500'000, 500'000, 250'000}).streams(), 980);
}

TEST(SizedCopyChoice, OneAccessToMemoryDecidesForShortCopies) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 2 * kKib, 9, {280, 290, 50});
  EXPECT_GT(copies(choice, 2 * kKib, 10'000, {280, 290, 50}).memcpys(), 9'900);
}

TEST(SizedCopyChoice, ReaderOfDataLargerThanItsCachesLosesNothing) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 16 * kKib * kKib, 9, {1'652'000, 1'517'000, 1'280'000});
  EXPECT_GT(copies(choice, 16 * kKib * kKib, 1'000, {1'652'000, 1'517'000, 1'280'000}).streams(), 980);
}

TEST(SizedCopyChoice, OnlyLongCopiesAreAllTimed) {
  SizedCopyChoice choice(kAllMethods);
  copies(choice, 4 * kKib, 1'000, {100, 200, 200});
  EXPECT_LT(copies(choice, 4 * kKib, 8'000, {100, 200, 200}).timed, 1'020);
  EXPECT_EQ(copies(choice, 64 * kKib, 1'000, {3'000, 4'000, 4'000}).timed, 1'000);
}

TEST(SizedCopyChoice, SizesAreIndependent) {
  SizedCopyChoice choice(kAllMethods);
  constexpr std::array<int64_t, kCopyMethods> kFar = {400'000, 400'000, 2'000},
                                              kNear = {20'000, 30'000, 40'000};
  copies(choice, 64 * kKib, 9, kFar);
  copies(choice, 1024 * kKib, 9, kNear);
  EXPECT_GT(copies(choice, 64 * kKib, 1'000, kFar).streams(), 980);
  EXPECT_GT(copies(choice, 1024 * kKib, 1'000, kNear).memcpys(), 980);
}

TEST(SizedCopyChoice, EverySizeHasAClass) {
  SizedCopyChoice choice(kAllMethods);
  for (std::size_t bits = 0; bits < 64; ++bits) {
    for (const std::size_t bytes : {(std::size_t{1} << bits) - 1, std::size_t{1} << bits}) {
      const Counts counts = copies(choice, bytes, 40, {1, 1, 1});
      EXPECT_EQ(counts.timed > 0, bytes >= SizedCopyChoice::kMinBytes) << bytes;
    }
  }
}

}  // namespace
}  // namespace gradwire
