#include "gradwire/base/threads/futex.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "gradwire/base/clock.h"
#include "gradwire/base/testing/eventually.h"

namespace gradwire {
namespace {

constexpr absl::Duration kLongWait = absl::Seconds(60);

TEST(Futex, WaitReturnsAtOnceWhenTheWordHasChanged) {
  std::atomic<uint32_t> word{1};
  const absl::Time begun = Clock::system().now();
  futex_wait(word, 0, kLongWait);
  futex_wait(word, 0, absl::InfiniteDuration());
  EXPECT_LT(Clock::system().now() - begun, kLongWait / 2);
}

TEST(Futex, WaitEndsAfterItsTime) {
  std::atomic<uint32_t> word{1};
  futex_wait(word, 1, absl::Milliseconds(2));
  const absl::Time begun = Clock::system().now();
  futex_wait(word, 1, absl::ZeroDuration());
  futex_wait(word, 1, -absl::Seconds(1));
  futex_wait(word, 1, -absl::InfiniteDuration());
  EXPECT_LT(Clock::system().now() - begun, kLongWait / 2);
}

TEST(Futex, WakeReachesThreadsThatMapTheSameMemoryElsewhere) {
  const int fd = ::memfd_create("futex_test", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, sizeof(uint32_t)), 0);
  const auto map = [fd] {
    void* memory = ::mmap(nullptr, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<std::atomic<uint32_t>*>(memory);
  };
  std::atomic<uint32_t>* const mapping = map();
  std::atomic<uint32_t>* const other_mapping = map();
  EXPECT_EQ(futex_wake_all(*other_mapping), 0);
  const absl::Time begun = Clock::system().now();
  std::thread sleeper([mapping] { futex_wait(*mapping, 0, kLongWait); });
  EXPECT_TRUE(eventually([other_mapping] { return futex_wake_all(*other_mapping) == 1; }, kLongWait / 2));
  sleeper.join();
  EXPECT_LT(Clock::system().now() - begun, kLongWait / 2);
  ::close(fd);
}

}  // namespace
}  // namespace gradwire
