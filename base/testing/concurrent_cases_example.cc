#include <gtest/gtest.h>

#include <cstdlib>

namespace {

TEST(Example, Passes) {}
TEST(Example, Fails) { FAIL() << "on purpose"; }
TEST(Example, SkipsItself) { GTEST_SKIP() << "a reason"; }
TEST(Example, Ends) { std::_Exit(0); }
TEST(Example, DISABLED_IsDisabled) { FAIL() << "this case does not run"; }

}  // namespace
