#include <gtest/gtest.h>

#include <thread>

namespace {

TEST(NoThreads, AThreadEndsTheProcessAndNamesTheAttribute) {
  EXPECT_DEATH(std::thread([] {}).join(), "declared with threads = False");
}

}  // namespace
