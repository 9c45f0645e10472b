#include <gtest/gtest.h>

#include "gradwire/rpc/caller/pending_calls.h"

namespace gradwire::rpc {
namespace {

TEST(RequestIds, WatermarkIsTheLowestOpenRequestToTheWorker) {
  RequestIds ids;
  const uint64_t first = ids.begin(1);
  const uint64_t other = ids.begin(2);
  const uint64_t second = ids.begin(1);
  EXPECT_LT(first, second);
  EXPECT_EQ(ids.answered_below(1), first);
  ids.end(1, first);
  ids.end(1, first);
  EXPECT_EQ(ids.answered_below(1), second);
  EXPECT_EQ(ids.answered_below(2), other);
  ids.end(1, second);
  ids.end(2, other);
  EXPECT_TRUE(ids.empty());
  EXPECT_EQ(ids.answered_below(1), ids.begin(1));
}

}  // namespace
}  // namespace gradwire::rpc
