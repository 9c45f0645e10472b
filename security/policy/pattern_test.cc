#include <gtest/gtest.h>

#include <string>

#include "gradwire/security/policy/policy.h"

namespace gradwire::security {
namespace {

TEST(Pattern, MatchesWholeNames) {
  EXPECT_TRUE(matches("model::*", "model::scale"));
  EXPECT_FALSE(matches("model::*", "other::model::scale"));
  EXPECT_TRUE(matches("*::scale", "a::b::scale"));
  EXPECT_FALSE(matches("*::scale", "a::scaled"));
  EXPECT_TRUE(matches("a*b*c", "aXXbYYbZc"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_FALSE(matches("", "x"));
  EXPECT_FALSE(matches(std::string(200, '*') + "x", std::string(10'000, 'y')));
}

}  // namespace
}  // namespace gradwire::security
