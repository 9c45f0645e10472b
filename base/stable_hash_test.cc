#include "gradwire/base/stable_hash.h"

#include "gtest/gtest.h"

namespace gradwire {
namespace {

// The hash is sent over the wire and stored in files, so it must never change.
TEST(StableHash, IsFnv1aAsPublished) {
  EXPECT_EQ(stable_hash(""), 0xcbf29ce484222325);
  EXPECT_EQ(stable_hash("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(stable_hash("foobar"), 0x85944171f73967e8);
}

}  // namespace
}  // namespace gradwire
