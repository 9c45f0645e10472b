#include "gradwire/base/stable_hash.h"

#include "gtest/gtest.h"

namespace gradwire {
namespace {

// It goes over the wire and into files.
TEST(StableHash, IsFnv1aAsPublished) {
  EXPECT_EQ(stable_hash(""), 0xcbf29ce484222325);
  EXPECT_EQ(stable_hash("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171f73967e8);
}

}  // namespace
}  // namespace gradwire
