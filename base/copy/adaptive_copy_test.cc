#include "gradwire/base/copy/adaptive_copy.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace gradwire {
namespace {

TEST(AdaptiveCopy, CopiesAllSizes) {
  AdaptiveCopy copy;
  SharedAdaptiveCopy shared;
  for (const std::size_t bytes : {0, 1, 2047, 2048, 65535, 65536, 600'000, 5'000'000}) {
    std::string source(bytes, '\0');
    for (std::size_t i = 0; i < bytes; ++i) source[i] = static_cast<char>(i * 31 + i / 251);
    for (int i = 0; i < 40; ++i) {
      std::string target(bytes, 'x');
      copy.copy(target.data(), source.data(), bytes);
      ASSERT_TRUE(target == source) << bytes << " bytes, copy " << i;
      target.assign(bytes, 'x');
      shared.copy(target.data(), source.data(), bytes);
      ASSERT_TRUE(target == source) << bytes << " bytes, shared copy " << i;
    }
  }
}

TEST(AdaptiveCopy, NothingNeedsNoMemory) {
  AdaptiveCopy().copy(nullptr, nullptr, 0);
  SharedAdaptiveCopy().copy(nullptr, nullptr, 0);
}

TEST(SharedAdaptiveCopy, ThreadsCopyAtTheSameTime) {
  SharedAdaptiveCopy copy;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&copy, thread] {
      const std::string source(10'000, static_cast<char>('a' + thread));
      std::string target(10'000, 'x');
      for (int i = 0; i < 500; ++i) copy.copy(target.data(), source.data(), source.size());
      EXPECT_EQ(target, source);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradwire
